"""Paints lanes into palette indexes: all items in view at once, a row for each lane."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens.lod.codes import BLANK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.lod.lanes import Bytes, Integers, Lanes
    from tracelens.lod.rows import Plan
    from tracelens.lod.window import Grid, Window


class _Items(NamedTuple):
    """Items of some lanes: `first` is the place of their row's first pixel."""

    starts: Integers
    ends: Integers
    codes: Bytes
    first: Integers


def sample(
    lanes: Lanes, chosen: Sequence[int], grid: Grid, seen: Window | None = None
) -> tuple[Bytes, int]:
    """Draw the span under each column's centre, a row for each chosen lane.

    Also returns how many spans of these lanes, in the window `seen`, lie between centres and are not
    drawn.
    """
    items, half = _items(lanes, chosen, grid), grid.step_ns // 2
    begin = _column(items.starts - 1 - half, grid, -1) + 1
    end = _column(items.ends - 1 - half, grid, -1) + 1
    seen = seen or grid.window
    hidden = (end <= begin) & (items.starts < seen.end_ns) & (items.ends > seen.start_ns)
    pixels = _painted(items, begin, end, (len(chosen), grid.columns))
    return pixels, int(np.count_nonzero(hidden))


def highest(lanes: Lanes, chosen: Sequence[int], grid: Grid) -> Bytes:
    """Draw the highest code that touches each column: a late step shows, however narrow it is.

    An item's first column may be that of others, too, of which the highest counts; the columns after
    its first one are no other item's first but the last of them.
    """
    items = _items(lanes, chosen, grid)
    first, last = _column(items.starts, grid), _column(items.ends - 1, grid)
    pixels = _painted(items, first + 1, last + 1, (len(chosen), grid.columns))
    if len(first):
        every = items.first + first
        begins = np.flatnonzero(np.diff(every, prepend=-1))
        place, flat = every[begins], pixels.ravel()
        flat[place] = np.maximum(flat[place], np.maximum.reduceat(items.codes, begins))
    return pixels


def fill(plan: Plan, rows: Bytes, band_rows: Sequence[int]) -> Bytes:
    """Stretch rows to the bands of a plan; `band_rows` lists the row of each band."""
    row_of = np.full(plan.height, len(rows))
    for band, row in zip(plan.bands, band_rows, strict=True):
        row_of[band.top : band.top + band.height] = row
    blank = np.full((1, rows.shape[1]), BLANK, np.uint8)
    return np.asarray(np.concatenate([rows, blank])[row_of])


def _items(lanes: Lanes, chosen: Sequence[int], grid: Grid) -> _Items:
    """Gather the items of some lanes that touch a grid."""
    begin, end = lanes.bounds(grid.start_ns, grid.end_ns)
    parts = [slice(int(begin[lane]), int(end[lane])) for lane in chosen]
    counts = [part.stop - part.start for part in parts]
    starts, ends, codes = (
        np.concatenate([values[:0], *(values[part] for part in parts)])
        for values in (lanes.starts, lanes.ends, lanes.codes)
    )
    first = np.repeat(grid.columns * np.arange(len(parts)), counts)
    return _Items(starts, ends, codes, first)


def _column(times: Integers, grid: Grid, least: int = 0) -> Integers:
    """Return the columns that hold these times; those beside the grid as `least`, or the last one."""
    column = (times - grid.start_ns) // grid.step_ns
    return np.asarray(np.clip(column, least, grid.columns - 1))


def _painted(items: _Items, begin: Integers, end: Integers, shape: tuple[int, int]) -> Bytes:
    """Fill the columns from `begin` up to `end` of each item; no two items have one in common."""
    drawn = end > begin
    first, codes = items.first[drawn], items.codes[drawn]
    changes = np.zeros(shape[0] * shape[1] + 1, np.uint8)
    changes[first + begin[drawn]] = codes
    changes[first + end[drawn]] -= codes  # sums of bytes wrap around, and end where they began
    return np.cumsum(changes[:-1], dtype=np.uint8).reshape(shape)
