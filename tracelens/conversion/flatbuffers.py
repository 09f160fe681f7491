"""Reads FlatBuffers, in which Arrow writes headers and footers; damage raises `struct.error`.

A table is a list of fields that may be missing; a field that is a table or vector is a distance ahead
(flatbuffers.dev/internals).
"""

from __future__ import annotations

import struct
from typing import Any


def find_root(buffer: memoryview) -> int:
    """Return the position of the outermost table."""
    return int(struct.unpack_from("<I", buffer, 0)[0])


def follow_offset(buffer: memoryview, position: int) -> int:
    """Return the position to which the distance at `position` points."""
    return position + int(struct.unpack_from("<I", buffer, position)[0])


def find_field(buffer: memoryview, table: int, index: int) -> int | None:
    """Return the position of field `index` of the table at position `table`; None if absent."""
    vtable = table - struct.unpack_from("<i", buffer, table)[0]  # sizes, then field offsets
    if vtable < 0:
        raise struct.error("a table begins before its header")
    (vtable_bytes,) = struct.unpack_from("<H", buffer, vtable)
    if 4 + 2 * index >= vtable_bytes:
        return None
    (offset,) = struct.unpack_from("<H", buffer, vtable + 4 + 2 * index)
    return table + offset if offset else None


def read_byte(buffer: memoryview, table: int, index: int) -> int:
    """Return a field of one byte, 0 if it is missing."""
    position = find_field(buffer, table, index)
    return 0 if position is None else int(struct.unpack_from("<B", buffer, position)[0])


def read_number(buffer: memoryview, table: int, index: int) -> int:
    """Return a field of eight bytes, 0 if it is missing."""
    position = find_field(buffer, table, index)
    return 0 if position is None else int(struct.unpack_from("<q", buffer, position)[0])


def read_structs(buffer: memoryview, table: int, index: int, layout: struct.Struct) -> list[Any]:
    """Return field `index` of a table, a vector of structs, as tuples; empty if it is absent."""
    position = find_field(buffer, table, index)
    if position is None:
        return []
    vector = follow_offset(buffer, position)  # where it begins, with its length
    (struct_count,) = struct.unpack_from("<I", buffer, vector)
    content = buffer[vector + 4 : vector + 4 + layout.size * struct_count]
    if len(content) != layout.size * struct_count:
        raise struct.error("a list is cut off")
    return list(layout.iter_unpack(content))


def find_text(buffer: memoryview, table: int, index: int) -> tuple[int, int]:
    """Return begin and end (exclusive) of a text field in `buffer`; (0, 0) if it is absent."""
    position = find_field(buffer, table, index)
    if position is None:
        return (0, 0)
    first_byte = follow_offset(buffer, position) + 4
    (size,) = struct.unpack_from("<I", buffer, first_byte - 4)
    if first_byte + size > len(buffer):
        raise struct.error("a text is cut off")
    return (first_byte, first_byte + size)
