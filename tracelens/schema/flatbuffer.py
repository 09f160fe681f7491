"""The few things to be known of a FlatBuffer to read, and to extend, the headers of Arrow messages.

A table is a list of fields that may be missing; a field that is a table or vector is a distance ahead
(flatbuffers.dev/internals). Wrong distances raise `struct.error`, never anything worse.
"""

from __future__ import annotations

import struct

__all__ = ["field", "follow", "root", "with_vector"]

_ALIGNMENT = 8


def root(buffer: memoryview) -> int:
    """Return where the outermost table stands."""
    return int(struct.unpack_from("<I", buffer, 0)[0])


def follow(buffer: memoryview, at: int) -> int:
    """Return where that stands which the distance at `at` leads to."""
    return at + int(struct.unpack_from("<I", buffer, at)[0])


def field(buffer: memoryview, table: int, index: int) -> int | None:
    """Return where a table's field stands, None if it has none."""
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    if vtable < 0:
        raise struct.error("a table begins before its header")
    (size,) = struct.unpack_from("<H", buffer, vtable)
    if 4 + 2 * index >= size:
        return None
    (offset,) = struct.unpack_from("<H", buffer, vtable + 4 + 2 * index)
    return table + offset if offset else None


def with_vector(buffer: bytes, index: int, count: int, content: bytes) -> bytes:
    """Replace a vector field of the outermost table, by one of `count` structures put at the end."""
    grown = bytearray(buffer)
    # A vector's content is aligned, and its length stands right before it.
    grown += bytes(-(len(grown) + 4) % _ALIGNMENT)
    at = field(memoryview(buffer), root(memoryview(buffer)), index)
    if at is None:
        raise struct.error("the field to be replaced is missing")
    struct.pack_into("<I", grown, at, len(grown) - at)
    return bytes(grown) + struct.pack("<I", count) + content
