"""The encoder writes PNG that decodes to the pixels and colours that went in."""

import struct

import numpy as np
from support.web.pngs import chunks, pixels_of

from tracelens.lod import raster

PALETTE = [(255, 255, 255), (68, 119, 170), (102, 204, 238)]


def test_pixels_and_palette_come_back() -> None:
    """Undoing the filter gives the palette indexes back, row by row; index 0 is transparent."""
    pixels = np.random.default_rng(1).integers(0, 3, (7, 11)).astype(np.uint8)
    pixels[3] = pixels[2]
    encoded = raster.encode_png(pixels, PALETTE)
    chunks_by_kind = chunks(encoded)
    width, height, depth, kind = struct.unpack_from(">IIBB", chunks_by_kind[b"IHDR"])
    assert (width, height, depth, kind) == (11, 7, 8, raster.INDEXED)
    assert chunks_by_kind[b"PLTE"] == bytes(value for colour in PALETTE for value in colour)
    assert chunks_by_kind[b"tRNS"] == b"\x00"
    assert (pixels_of(encoded) == pixels).all()


def test_equal_rows_cost_next_to_nothing() -> None:
    """Tall bands repeat their row: 500 copies of a noisy row take little more than one."""
    row = np.random.default_rng(2).integers(0, 64, (1, 2400)).astype(np.uint8)
    one, many = (len(raster.encode_png(np.repeat(row, n, axis=0), PALETTE)) for n in (1, 500))
    assert many < 5 * one
