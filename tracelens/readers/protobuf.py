"""Declares messages of protobuf to its own library; fields that are not declared are skipped by it.

`fields` takes a message apart without that library, to recognize a format by its first bytes.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tracelens.errors import MissingExtra, NotATrace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Message: field: (number, type, repeated). A type that is not one of protobuf's own is a message's.
Fields = dict[str, tuple[int, str, bool]]
_PACKAGE: Final = "tracelens"
_MAX_VARINT_BYTES: Final = 10
_FIXED_BYTES: Final = {1: 8, 5: 4}  # by wire type
LENGTH: Final = 2  # the wire type of what has its length in front


def classes(name: str, messages: Mapping[str, Fields]) -> dict[str, Any]:
    """Return the classes of messages of a format; `name` is also that of the extra with the library.

    Raises:
        MissingExtra: protobuf's library is not installed.
    """
    try:
        from google.protobuf import (  # noqa: PLC0415 - an extra
            descriptor_pb2,
            descriptor_pool,
            message_factory,
        )
    except ImportError as error:
        raise MissingExtra.naming(f"Reading a file of {name}'s format", name) from error
    kinds = descriptor_pb2.FieldDescriptorProto
    package = f"{_PACKAGE}.{name}"
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    for message_name, message_fields in messages.items():
        message = file.message_type.add(name=message_name)
        for field_name, (number, kind, repeated) in message_fields.items():
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=number, label=label)
            if kind in messages:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                field.type = getattr(kinds, f"TYPE_{kind}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


@contextmanager
def whole(what: str) -> Iterator[None]:
    """Turn the library's error about damaged content into a sentence.

    Raises:
        NotATrace: the content is damaged.
    """
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - an extra

    try:
        yield
    except DecodeError as error:
        raise NotATrace(f"it is no whole {what}") from error


def varint(content: bytes, position: int) -> tuple[int | None, int]:
    """Return the number at a position, and its end; None for no number."""
    number = 0
    for count, byte in enumerate(content[position : position + _MAX_VARINT_BYTES]):
        number |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return number, position + count + 1
    return None, len(content)


def fields(content: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, wire type and content of each field; that of numbers is empty.

    The last one may be cut off. A field whose wire type does not exist is the last one.
    """
    position = 0
    while position < len(content):
        tag, position = varint(content, position)
        if tag is None:
            return
        number, wire_type = tag >> 3, tag & 7
        size: int | None = _FIXED_BYTES.get(wire_type, 0)
        if wire_type == LENGTH:
            size, position = varint(content, position)
        elif wire_type == 0:
            _, position = varint(content, position)
        if size is None:
            return
        yield number, wire_type, content[position : position + size] if wire_type == LENGTH else b""
        if wire_type not in {0, LENGTH, *_FIXED_BYTES}:
            return
        position += size
