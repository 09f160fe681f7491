"""Takes an indexed PNG apart, as a browser does."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from tracelens.lod import raster


def chunks(data: bytes) -> dict[bytes, bytes]:
    """Take a PNG apart, checking every checksum."""
    assert data.startswith(raster.PNG_SIGNATURE)
    bodies, offset = {}, len(raster.PNG_SIGNATURE)
    while offset < len(data):
        (length,) = struct.unpack_from(">I", data, offset)
        name, body = data[offset + 4 : offset + 8], data[offset + 8 : offset + 8 + length]
        (check,) = struct.unpack_from(">I", data, offset + 8 + length)
        assert check == zlib.crc32(name + body)
        bodies[name] = body
        offset += 12 + length
    return bodies


def undone(lines: np.ndarray) -> np.ndarray:
    """Undo the filter of every row."""
    rows = lines[:, 1:].copy()
    assert set(lines[:, 0]) == {raster.FILTER_NONE, raster.FILTER_UP}
    for index in np.flatnonzero(lines[:, 0] == raster.FILTER_UP):
        rows[index] += rows[index - 1]
    return rows


def pixels_of(data: bytes) -> np.ndarray:
    """Return the palette indexes, [row, column]."""
    parts = chunks(data)
    width, height = struct.unpack_from(">II", parts[b"IHDR"])
    lines = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, width + 1)
    return undone(lines)
