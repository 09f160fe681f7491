"""Declares messages of protobuf to its own library; fields that are not declared are skipped by it.

`fields` takes a message apart without that library, to tell a format by its first bytes.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tracelens.errors import MissingExtra, NotATrace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["LENGTH", "Fields", "classes", "fields", "varint", "whole"]

# Message: field: (number, type, repeated). A type that is none of protobuf's own is a message's.
Fields = dict[str, tuple[int, str, bool]]
_PACKAGE: Final = "tracelens"
_LONGEST_VARINT: Final = 10  # bytes
_FIXED: Final = {1: 8, 5: 4}  # bytes, by wire type
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
    for called, fields in messages.items():
        message = file.message_type.add(name=called)
        for field, (number, kind, repeated) in fields.items():
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if kind in messages:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                added.type = getattr(kinds, f"TYPE_{kind}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        called: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{called}"))
        for called in messages
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


def varint(content: bytes, place: int) -> tuple[int | None, int]:
    """Return the number at a place, and where it ends; None where there is none."""
    value = 0
    for count, byte in enumerate(content[place : place + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, place + count + 1
    return None, len(content)


def fields(content: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, wire type and content of each field; that of numbers is empty.

    The last one may be cut off. What has a wire type that does not exist is the last one.
    """
    place = 0
    while place < len(content):
        tag, place = varint(content, place)
        if tag is None:
            return
        size: int | None = _FIXED.get(tag & 7, 0)
        if tag & 7 == LENGTH:
            size, place = varint(content, place)
        elif tag & 7 == 0:
            _, place = varint(content, place)
        if size is None:
            return
        yield tag >> 3, tag & 7, content[place : place + size] if tag & 7 == LENGTH else b""
        if tag & 7 not in {0, LENGTH, *_FIXED}:
            return
        place += size
