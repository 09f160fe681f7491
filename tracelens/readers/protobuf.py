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
# Wire types: a number of any length, what has its length in front; bytes of the others.
VARINT: Final = 0
LENGTH: Final = 2
FIXED_BYTES: Final = {1: 8, 5: 4}


def build_classes(format_name: str, messages: Mapping[str, Fields]) -> dict[str, Any]:
    """Return the class of each message of a format, by name; `format_name` names the extra, too.

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
        purpose = f"Reading a file of {format_name}'s format"
        raise MissingExtra.from_extra(purpose, format_name) from error
    field_proto = descriptor_pb2.FieldDescriptorProto
    package = f"{_PACKAGE}.{format_name}"
    proto_file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package)
    proto_file.syntax = "proto3"
    for message_name, message_fields in messages.items():
        message = proto_file.message_type.add(name=message_name)
        for field_name, (number, type_name, repeated) in message_fields.items():
            label = field_proto.LABEL_REPEATED if repeated else field_proto.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=number, label=label)
            if type_name in messages:
                field.type, field.type_name = field_proto.TYPE_MESSAGE, f".{package}.{type_name}"
            else:
                field.type = getattr(field_proto, f"TYPE_{type_name}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto_file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


@contextmanager
def refuse_damage(subject: str) -> Iterator[None]:
    """Turn the library's error about damaged content of `subject` into a sentence.

    Raises:
        NotATrace: the content is damaged.
    """
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - an extra

    try:
        yield
    except DecodeError as error:
        raise NotATrace(f"it is no whole {subject}") from error


def read_varint(content: bytes, position: int) -> tuple[int | None, int]:
    """Return the number that begins at a position, and the position behind it; None without one."""
    number = 0
    for byte_index, byte in enumerate(content[position : position + _MAX_VARINT_BYTES]):
        number |= (byte & 0x7F) << 7 * byte_index
        if byte < 0x80:
            return number, position + byte_index + 1
    return None, len(content)


def split_fields(content: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield field number, wire type and content of each field; the content of numbers is empty.

    The last one may be cut off. A field whose wire type does not exist is the last one.
    """
    position = 0
    while position < len(content):
        tag, position = read_varint(content, position)
        if tag is None:
            return
        field_number, wire_type = tag >> 3, tag & 7
        field_bytes: int | None = FIXED_BYTES.get(wire_type, 0)
        if wire_type == LENGTH:
            field_bytes, position = read_varint(content, position)
        elif wire_type == VARINT:
            _, position = read_varint(content, position)
        if field_bytes is None:
            return
        value = content[position : position + field_bytes] if wire_type == LENGTH else b""
        yield field_number, wire_type, value
        if wire_type not in {VARINT, LENGTH, *FIXED_BYTES}:
            return
        position += field_bytes
