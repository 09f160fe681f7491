"""The encoder writes PNG that decodes to the pixels and colours that went in."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from tracelens.lod import png

PALETTE = [(255, 255, 255), (68, 119, 170), (102, 204, 238)]


def chunks(data: bytes) -> dict[bytes, bytes]:
    """Take a PNG apart, checking every checksum."""
    assert data.startswith(png.SIGNATURE)
    found, at = {}, len(png.SIGNATURE)
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        (check,) = struct.unpack_from(">I", data, at + 8 + length)
        assert check == zlib.crc32(name + body)
        found[name] = body
        at += 12 + length
    return found


def undone(lines: np.ndarray) -> np.ndarray:
    """Undo the filter of every row."""
    rows = lines[:, 1:].copy()
    assert set(lines[:, 0]) == {png.FILTER_NONE, png.FILTER_UP}
    for index in np.flatnonzero(lines[:, 0] == png.FILTER_UP):
        rows[index] += rows[index - 1]
    return rows


def test_pixels_and_palette_come_back() -> None:
    """Undoing the filter gives the palette indexes back, row by row; index 0 is transparent."""
    pixels = np.random.default_rng(1).integers(0, 3, (7, 11)).astype(np.uint8)
    pixels[3] = pixels[2]
    parts = chunks(png.encode(pixels, PALETTE))
    width, height, depth, kind = struct.unpack_from(">IIBB", parts[b"IHDR"])
    assert (width, height, depth, kind) == (11, 7, 8, png.INDEXED)
    assert parts[b"PLTE"] == bytes(value for colour in PALETTE for value in colour)
    assert parts[b"tRNS"] == b"\x00"
    lines = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(7, 12)
    assert (undone(lines) == pixels).all()


def test_equal_rows_cost_next_to_nothing() -> None:
    """Tall bands repeat their row: 500 copies of a noisy row take little more than one."""
    row = np.random.default_rng(2).integers(0, 64, (1, 2400)).astype(np.uint8)
    one, many = (len(png.encode(np.repeat(row, n, axis=0), PALETTE)) for n in (1, 500))
    assert many < 5 * one
