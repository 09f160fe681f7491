"""The critical path as the timeline draws it: which row it is on, from when to when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens.analyses import _stays

if TYPE_CHECKING:
    import polars as pl

    from tracelens.lod.lanes import Lanes
    from tracelens.lod.window import Grid

STAY_PX: Final = 2  # the mean width of a stay below which neighbours are joined


class Stay(NamedTuple):
    """A stretch of the path on one row of the scene."""

    lane: int
    start_ns: int
    end_ns: int


def within(stays: pl.DataFrame, lanes: Lanes, grid: Grid) -> list[Stay]:
    """Return what a grid of pixels has room for; `stays` as in `critical_path`, with its processes."""
    rows = {lane.process: index for index, lane in enumerate(lanes.lanes) if lane.role == "worker"}
    shown = _stays.within(stays, grid.start_ns, grid.end_ns, max(grid.columns // STAY_PX, 1))
    return [
        Stay(rows[process], start, end)
        for process, start, end in shown.iter_rows()
        if process in rows
    ]
