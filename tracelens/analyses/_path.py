"""Walks the critical path backwards: from the job's end, always to what had to be over before.

On a rank that is what it did before; where it stood waiting for the last rank of a collective, it is
that rank, at the moment when it came. So each step of the walk is one wait, found by bisection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses._partition import CATEGORIES, Codes

if TYPE_CHECKING:
    from tracelens.analyses.phases import Phases
    from tracelens.trace import Trace

__all__ = ["PATH_COLUMNS", "Lane", "Lanes", "walk"]

Ints = npt.NDArray[np.int64]

WAIT: Final = CATEGORIES.index("wait")
PATH_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
}


@dataclass(frozen=True)
class Lane:
    """One rank's time: boundaries of its pieces and their categories, and its waits for other ranks.

    `wait_end` is ascending; `to` is the process that ended each wait, by coming.
    """

    bounds: Ints
    category: Codes
    wait_end: Ints
    to: Ints

    def spent(self, moments: Ints) -> Ints:
        """Return how much of each category had passed at some moments, [moment, category]."""
        length = np.diff(self.bounds)
        total = np.zeros((len(moments), len(CATEGORIES)), np.int64)
        inside = np.clip(moments, self.bounds[0], self.bounds[-1])
        piece = np.minimum(np.searchsorted(self.bounds, inside, side="right") - 1, len(length) - 1)
        for code in np.unique(self.category):
            mine = self.category == code
            before = np.concatenate([[0], np.cumsum(np.where(mine, length, 0))])
            part = np.where(mine[piece], inside - self.bounds[piece], 0)
            total[:, code] = before[piece] + part
        return total


class Lanes:
    """The lanes of all workers that recorded a step; each is made when the walk comes to it."""

    def __init__(self, trace: Trace, phases: Phases) -> None:
        waited = pl.col("last_arrival_ns").is_not_null() & (pl.col("wait_ns") > 0)
        calls = trace.arrivals.filter(waited).select("process", "last_arrival_ns", "last_rank")
        order = np.argsort(calls["process"].to_numpy(), kind="stable")
        owner = calls["process"].to_numpy()[order]
        self._moment = calls["last_arrival_ns"].to_numpy()[order]
        self._last = calls["last_rank"].fill_null(-1).to_numpy()[order]
        self._process_of = dict(trace.workers.select("rank", "process").iter_rows())
        processes = phases.pieces.steps["process"].to_numpy()
        self._pieces = {int(processes[offset]): pieces for pieces, offset in phases.pieces.cut}
        ends = np.searchsorted(owner, np.array(list(self._pieces), owner.dtype), side="right")
        begins = np.searchsorted(owner, np.array(list(self._pieces), owner.dtype))
        self._rows = dict(
            zip(self._pieces, zip(begins.tolist(), ends.tolist(), strict=True), strict=True)
        )
        self._made: dict[int, Lane] = {}

    def __contains__(self, process: int) -> bool:
        """Say whether a process recorded steps."""
        return process in self._pieces

    @property
    def last(self) -> int | None:
        """The process that ends last; null without any."""
        ends = {process: int(pieces.bounds[-1]) for process, pieces in self._pieces.items()}
        return max(ends, key=lambda process: ends[process]) if ends else None

    def of(self, process: int) -> Lane:
        """Return a process's lane."""
        if process not in self._made:
            self._made[process] = self._make(process)
        return self._made[process]

    def _make(self, process: int) -> Lane:
        pieces = self._pieces[process]
        first, end = self._rows[process]
        order = np.argsort(self._moment[first:end], kind="stable") + first
        moment, last = self._moment[order], self._last[order]
        ends, begins = _waits(pieces.bounds, pieces.category)
        if not len(moment):
            return Lane(pieces.bounds, pieces.category, ends[:0], ends[:0])
        row = np.searchsorted(moment, ends, side="right") - 1
        known = (row >= 0) & (moment[np.maximum(row, 0)] > begins)
        came = [self._process_of.get(rank, -1) for rank in last[np.maximum(row, 0)].tolist()]
        to = np.where(known, np.array(came, np.int64), -1)
        kept = (to >= 0) & (to != process)
        return Lane(pieces.bounds, pieces.category, ends[kept], to[kept])


def _waits(bounds: Ints, category: npt.NDArray[np.generic]) -> tuple[Ints, Ints]:
    """Return ends and begins of what stands waiting, neighbours joined."""
    waiting = np.concatenate([[False], np.asarray(category) == WAIT, [False]])
    begins, ends = (
        np.flatnonzero(~waiting[:-1] & waiting[1:]),
        np.flatnonzero(waiting[:-1] & ~waiting[1:]),
    )
    return bounds[ends], bounds[begins]


def walk(lanes: Lanes) -> pl.DataFrame:
    """Return the path's intervals, the last first; they touch, from the job's end to a rank's begin."""
    process = lanes.last
    if process is None:
        return pl.DataFrame(schema=PATH_COLUMNS)
    now = int(lanes.of(process).bounds[-1])
    rows = []
    while True:
        lane = lanes.of(process)
        wait = int(np.searchsorted(lane.wait_end, now)) - 1
        if wait < 0 or int(lane.to[wait]) not in lanes:
            rows.append((process, min(int(lane.bounds[0]), now), now))
            return pl.DataFrame(rows, schema=PATH_COLUMNS, orient="row")
        reached = int(lane.wait_end[wait])  # earlier than `now`, so the walk ends
        rows.append((process, reached, now))
        process, now = int(lane.to[wait]), reached
