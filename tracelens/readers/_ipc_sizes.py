"""How large an Arrow IPC message would become, found out before anything is decompressed.

A file of some kilobytes can claim gigabytes. Every compressed buffer begins with its full length, and
the message's header says where buffers are; the header is a FlatBuffer, of which this reads the few
fields it needs (format: arrow.apache.org/docs/format/Columnar.html).
"""

from __future__ import annotations

import struct
from typing import Final

from tracelens.schema.flatbuffer import field, follow, root

_DICTIONARY_BATCH: Final = 2
_RECORD_BATCH: Final = 3
_STORED: Final = -1  # in place of a length: the buffer is not compressed


def declared_bytes(header: memoryview, body: memoryview) -> int:
    """Return how many bytes the buffers of one message say they hold; 0 for a schema.

    Raises:
        struct.error: the header points outside of itself or of the body.
    """
    message = root(header)
    kind = field(header, message, 1)
    table = field(header, message, 2)
    if kind is None or table is None or header[kind] not in {_DICTIONARY_BATCH, _RECORD_BATCH}:
        return 0
    batch = follow(header, table)
    if header[kind] == _DICTIONARY_BATCH:
        data = field(header, batch, 1)
        if data is None:
            return 0
        batch = follow(header, data)
    buffers = field(header, batch, 2)
    if buffers is None:
        return 0
    compressed = field(header, batch, 3) is not None
    return _total(header, follow(header, buffers), body, compressed=compressed)


def _total(header: memoryview, vector: int, body: memoryview, *, compressed: bool) -> int:
    (count,) = struct.unpack_from("<I", header, vector)
    total = 0
    for index in range(count):
        offset, length = struct.unpack_from("<qq", header, vector + 4 + 16 * index)
        if length and compressed:
            if offset < 0:
                raise struct.error("a buffer begins before its message")
            (full,) = struct.unpack_from("<q", body, offset)
            total += length if full == _STORED else abs(full)
        else:
            total += abs(length)
    return total
