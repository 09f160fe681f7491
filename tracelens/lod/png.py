"""Packs palette indexes into an indexed PNG: one byte a pixel before compression, no library."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.lod.lanes import Bytes

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
INDEXED: Final = 3
FILTER_NONE: Final = 0
SAMPLE: Final = 8  # of so many pixels of a row, one is looked at to choose its filter
FILTER_UP: Final = 2  # the difference to the row above

Colour = tuple[int, int, int]


def encode(pixels: Bytes, palette: Sequence[Colour], *, small: bool = False) -> bytes:
    """Encode [row, column] palette indexes; index 0 is transparent.

    A row is written as its difference to the one above where that leaves more runs. `small` takes the
    time for as few bytes as can be.
    """
    height, width = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, INDEXED, 0, 0, 0)
    lines = np.empty((height, width + 1), np.uint8)
    lines[:, 0] = FILTER_NONE
    lines[:, 1:] = pixels
    looked = pixels[:, :-1:SAMPLE]
    alike = np.count_nonzero(looked[1:] == looked[:-1], axis=1)
    runs = np.count_nonzero(looked[1:] == pixels[1:, 1::SAMPLE], axis=1)
    up = 1 + np.flatnonzero(alike >= runs)
    lines[up, 0] = FILTER_UP
    lines[up, 1:] -= pixels[up - 1]
    return b"".join(
        (
            SIGNATURE,
            _chunk(b"IHDR", header),
            _chunk(b"PLTE", bytes(part for colour in palette for part in colour)),
            _chunk(b"tRNS", b"\x00"),
            _chunk(
                b"IDAT", zlib.compress(lines.tobytes(), 9) if small else _packed(lines.tobytes())
            ),
            _chunk(b"IEND", b""),
        )
    )


def _packed(data: bytes) -> bytes:
    """Compress runs of equal bytes only: as few bytes as a longer search finds, but quicker."""
    packing = zlib.compressobj(1, strategy=zlib.Z_RLE)
    return packing.compress(data) + packing.flush()


def _chunk(name: bytes, data: bytes) -> bytes:
    check = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)
