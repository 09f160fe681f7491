"""Paints lanes into palette indexes, a pixel column at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.lod.codes import BLANK
from tracelens.lod.window import Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.lod.lanes import Bytes, Integers, Lanes
    from tracelens.lod.rows import Plan
    from tracelens.lod.window import Grid


def sample(
    lanes: Lanes, chosen: Sequence[int], grid: Grid, seen: Window | None = None
) -> tuple[Bytes, int]:
    """Draw the span under each column's centre, a row for each chosen lane.

    Also returns how many spans of these lanes, in the window `seen`, lie between centres and are not
    drawn.
    """
    pixels = np.full((len(chosen), grid.columns), BLANK, np.uint8)
    centres = grid.centres
    seen = seen or Window(grid.start_ns, grid.end_ns)
    hidden = 0
    for row, lane in enumerate(chosen):
        part = lanes.between(lane, grid.start_ns, grid.end_ns)
        if part.start == part.stop:
            continue
        item = part.start + np.searchsorted(lanes.starts[part], centres, side="right") - 1
        np.maximum(item, part.start, out=item)
        inside = (centres >= lanes.starts[item]) & (centres < lanes.ends[item])
        pixels[row] = np.where(inside, lanes.codes[item], BLANK)
        hidden += _missed(lanes.between(lane, seen.start_ns, seen.end_ns), item[inside])
    return pixels, hidden


def highest(lanes: Lanes, chosen: Sequence[int], grid: Grid) -> Bytes:
    """Draw the highest code that touches each column: a late step shows, however narrow it is."""
    pixels = np.full((len(chosen), grid.columns), BLANK, np.uint8)
    edges = grid.edges
    for row, lane in enumerate(chosen):
        part = lanes.between(lane, grid.start_ns, grid.end_ns)
        if part.start == part.stop:
            continue
        codes = np.append(lanes.codes[part], np.uint8(BLANK))
        first = np.searchsorted(lanes.ends[part], edges[:-1], side="right")
        last = np.searchsorted(lanes.starts[part], edges[1:], side="left")
        bounds = np.stack([first, np.maximum(last, first)], axis=1).ravel()
        found = np.maximum.reduceat(codes, bounds)[::2]
        pixels[row] = np.where(last > first, found, BLANK)
    return pixels


def fill(plan: Plan, rows: Bytes, band_rows: Sequence[int]) -> Bytes:
    """Stretch rows to the bands of a plan; `band_rows` lists the row of each band."""
    image = np.full((plan.height, rows.shape[1]), BLANK, np.uint8)
    for band, row in zip(plan.bands, band_rows, strict=True):
        image[band.top : band.top + band.height] = rows[row]
    return image


def _missed(part: slice, drawn: Integers) -> int:
    """Count the items of a lane's part that are not among those drawn (in ascending order)."""
    within = drawn[(drawn >= part.start) & (drawn < part.stop)]
    distinct = int(np.count_nonzero(np.diff(within))) + 1 if len(within) else 0
    return int(part.stop - part.start) - distinct
