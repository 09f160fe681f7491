"""Reads FlatBuffers, in which Arrow writes headers and footers; whatever is wrong is a `struct.error`.

A table is a list of fields that may be missing; a field that is a table or vector is a distance ahead
(flatbuffers.dev/internals).
"""

from __future__ import annotations

import struct
from typing import Any

__all__ = ["byte", "field", "followed", "number", "records", "root", "text"]


def root(buffer: memoryview) -> int:
    """Return the position of the outermost table."""
    return int(struct.unpack_from("<I", buffer, 0)[0])


def followed(buffer: memoryview, at: int) -> int:
    """Return the position to which the distance at `at` points."""
    return at + int(struct.unpack_from("<I", buffer, at)[0])


def field(buffer: memoryview, table: int, index: int) -> int | None:
    """Return the position of a table's field, None if it has none."""
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    if vtable < 0:
        raise struct.error("a table begins before its header")
    (size,) = struct.unpack_from("<H", buffer, vtable)
    if 4 + 2 * index >= size:
        return None
    (offset,) = struct.unpack_from("<H", buffer, vtable + 4 + 2 * index)
    return table + offset if offset else None


def byte(buffer: memoryview, table: int, index: int) -> int:
    """Return a field of one byte, 0 if it is missing."""
    at = field(buffer, table, index)
    return 0 if at is None else int(struct.unpack_from("<B", buffer, at)[0])


def number(buffer: memoryview, table: int, index: int) -> int:
    """Return a field of eight bytes, 0 if it is missing."""
    at = field(buffer, table, index)
    return 0 if at is None else int(struct.unpack_from("<q", buffer, at)[0])


def records(buffer: memoryview, table: int, index: int, of: struct.Struct) -> list[Any]:
    """Return a list of structs; nothing if it is missing."""
    at = field(buffer, table, index)
    if at is None:
        return []
    vector = followed(buffer, at)
    (count,) = struct.unpack_from("<I", buffer, vector)
    content = buffer[vector + 4 : vector + 4 + of.size * count]
    if len(content) != of.size * count:
        raise struct.error("a list is cut off")
    return list(of.iter_unpack(content))


def text(buffer: memoryview, table: int, index: int) -> tuple[int, int]:
    """Return begin and end of a text field."""
    at = field(buffer, table, index)
    if at is None:
        return (0, 0)
    begin = followed(buffer, at) + 4
    (size,) = struct.unpack_from("<I", buffer, begin - 4)
    if begin + size > len(buffer):
        raise struct.error("a text is cut off")
    return (begin, begin + size)
