"""Paints lanes into palette indexes, a row for each lane, and encodes them as PNG.

The PNG is indexed: one byte a pixel before compression, and no library.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tracelens.lod.block_columns import take_ranges
from tracelens.lod.lanes import BLANK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Bytes, Ints
    from tracelens.lod.lanes import Lanes
    from tracelens.lod.viewport import Grid, Plan, Window

PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
INDEXED: Final = 3
FILTER_NONE: Final = 0
SAMPLE: Final = 8  # of so many pixels of a row, one is looked at to choose its filter
FILTER_UP: Final = 2  # the difference to the row above


class _Items(NamedTuple):
    """Items of some lanes, [item]; `row_begins` index their rows' first pixels in the flat picture."""

    starts_ns: Ints
    ends_ns: Ints
    palette_codes: Bytes
    row_begins: Ints


def draw_samples(
    lanes: Lanes, chosen_lanes: Sequence[int], grid: Grid, window: Window | None = None
) -> tuple[Bytes, int]:
    """Draw the span under each column's centre, as palette codes, [chosen lane, column].

    Also returns how many spans of these lanes, in the window `window`, are between centres and not
    drawn.
    """
    items, half_step_ns = _gather_items(lanes, chosen_lanes, grid), grid.column_ns // 2
    # A span is drawn from the first column whose centre is not before its start.
    first_columns = _find_columns(items.starts_ns - 1 - half_step_ns, grid, least=-1) + 1
    end_columns = _find_columns(items.ends_ns - 1 - half_step_ns, grid, least=-1) + 1
    window = window or grid.window
    is_hidden = (
        (end_columns <= first_columns)
        & (items.starts_ns < window.end_ns)
        & (items.ends_ns > window.start_ns)
    )
    pixels = _fill_columns(
        items, first_columns, end_columns, (len(chosen_lanes), grid.column_count)
    )
    return pixels, int(np.count_nonzero(is_hidden))


def draw_highest(lanes: Lanes, chosen_lanes: Sequence[int], grid: Grid) -> Bytes:
    """Draw the highest code that touches each column, [lane, column]: narrow slow steps show, too.

    Several items may share a first column, and the highest of them counts. After its first column, an
    item shares at most its last one, with the items that follow.
    """
    items = _gather_items(lanes, chosen_lanes, grid)
    first_columns = _find_columns(items.starts_ns, grid)
    last_columns = _find_columns(items.ends_ns - 1, grid)
    pixels = _fill_columns(
        items, first_columns + 1, last_columns + 1, (len(chosen_lanes), grid.column_count)
    )
    if len(first_columns):
        first_pixels = items.row_begins + first_columns
        group_begins = np.flatnonzero(np.diff(first_pixels, prepend=-1))
        pixel_indices, flat_pixels = first_pixels[group_begins], pixels.ravel()
        flat_pixels[pixel_indices] = np.maximum(
            flat_pixels[pixel_indices], np.maximum.reduceat(items.palette_codes, group_begins)
        )
    return pixels


def stretch_rows(plan: Plan, rows: Bytes, band_rows: Sequence[int]) -> Bytes:
    """Stretch rows, palette codes [row, column], to the height of a plan's bands, [pixel, column].

    `band_rows` lists the row of each band.
    """
    row_of_pixel = np.full(plan.bottom_px - plan.top_px, len(rows))
    for band, row in zip(plan.bands, band_rows, strict=True):
        begin = band.top_px - plan.top_px
        row_of_pixel[begin : begin + band.height_px] = row
    blank = np.full((1, rows.shape[1]), BLANK, np.uint8)
    return np.asarray(np.concatenate([rows, blank])[row_of_pixel])


def _gather_items(lanes: Lanes, chosen_lanes: Sequence[int], grid: Grid) -> _Items:
    """Gather the items of some lanes that touch a grid."""
    first_items, end_items = lanes.find_item_ranges(grid.start_ns, grid.end_ns, list(chosen_lanes))
    lane_columns = (lanes.starts_ns, lanes.ends_ns, lanes.palette_codes)
    starts_ns, ends_ns, codes = (
        take_ranges(column, first_items, end_items) for column in lane_columns
    )
    row_begins = np.repeat(grid.column_count * np.arange(len(first_items)), end_items - first_items)
    return _Items(starts_ns, ends_ns, codes, row_begins)


def _find_columns(times_ns: Ints, grid: Grid, least: int = 0) -> Ints:
    """Return the column of each time (ns); `least` before the grid, the last column after it."""
    column = (times_ns - grid.start_ns) // grid.column_ns
    return np.asarray(np.clip(column, least, grid.column_count - 1))


def _fill_columns(
    items: _Items, first_columns: Ints, end_columns: Ints, shape: tuple[int, int]
) -> Bytes:
    """Return a picture of `shape` (rows, columns) of the items' codes; items share no column.

    An item fills the columns from the first to before the end one, both [item].
    """
    is_drawn = end_columns > first_columns
    row_begins, codes = items.row_begins[is_drawn], items.palette_codes[is_drawn]
    changes = np.zeros(shape[0] * shape[1] + 1, np.uint8)
    changes[row_begins + first_columns[is_drawn]] = codes
    changes[row_begins + end_columns[is_drawn]] -= codes  # sums of bytes wrap around
    return np.cumsum(changes[:-1], dtype=np.uint8).reshape(shape)


Colour = tuple[int, int, int]


def encode_png(pixels: Bytes, palette: Sequence[Colour], *, small: bool = False) -> bytes:
    """Encode palette indexes, [row, column], as PNG; index 0 is transparent.

    A row is written as its difference to the one above where that leaves more runs. `small` takes the
    time for as few bytes as can be.
    """
    height, width = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, INDEXED, 0, 0, 0)
    lines = np.empty((height, width + 1), np.uint8)
    lines[:, 0] = FILTER_NONE
    lines[:, 1:] = pixels
    samples = pixels[:, :-1:SAMPLE]
    repeats = np.count_nonzero(samples[1:] == samples[:-1], axis=1)
    runs = np.count_nonzero(samples[1:] == pixels[1:, 1::SAMPLE], axis=1)
    rows_up = 1 + np.flatnonzero(repeats >= runs)
    lines[rows_up, 0] = FILTER_UP
    lines[rows_up, 1:] -= pixels[rows_up - 1]
    return b"".join(
        (
            PNG_SIGNATURE,
            _make_chunk(b"IHDR", header),
            _make_chunk(b"PLTE", bytes(channel for colour in palette for channel in colour)),
            _make_chunk(b"tRNS", b"\x00"),
            _make_chunk(
                b"IDAT",
                zlib.compress(lines.tobytes(), level=9)
                if small
                else _compress_runs(lines.tobytes()),
            ),
            _make_chunk(b"IEND", b""),
        )
    )


def _compress_runs(data: bytes) -> bytes:
    """Compress runs of equal bytes only: as few bytes as a longer search finds, but quicker."""
    packing = zlib.compressobj(1, strategy=zlib.Z_RLE)
    return packing.compress(data) + packing.flush()


def _make_chunk(name: bytes, data: bytes) -> bytes:
    check = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)
