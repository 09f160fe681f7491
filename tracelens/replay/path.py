"""The critical path of a run, walked backwards over the partition of every rank's time.

The walk begins at the job's end and always goes to what had to be over before. Mostly that is what the
same rank did before. Where the rank waited for the last rank of a collective, or for the other side of a
message, the walk goes on with that rank, from the moment when it arrived. The event graph (`model.py`)
is not asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES
from tracelens.model.calls import NEVER

if TYPE_CHECKING:
    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Int32s, Ints
    from tracelens.model.trace import Trace

__all__ = ["PATH_COLUMNS", "Lane", "Lanes", "walk_path"]

WAIT: Final = CATEGORIES.index("wait")
PATH_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
}


@dataclass(frozen=True, eq=False)
class Lane:
    """When one rank's time begins and ends, and its waits for other ranks.

    `wait_end` is ascending; `to` is the process that ended each wait, by coming.
    """

    begin_ns: int
    end_ns: int
    wait_end: Ints
    to: Ints


class Lanes:
    """The lanes of all workers that recorded a step; each is made when the walk reaches it."""

    def __init__(self, trace: Trace, phases: Phases) -> None:
        self._calls = trace.calls
        self._messages = trace.awaited
        self._ranks, self._processes = trace.workers.select("rank", "process").to_numpy().T
        self._all = phases.pieces
        self._place = {process: place for place, process in enumerate(phases.pieces.processes)}
        self._made: dict[int, Lane] = {}

    def __contains__(self, process: int) -> bool:
        """Return whether a process recorded steps."""
        return process in self._place

    @property
    def last(self) -> int | None:
        """The process that ends last; null without any."""
        packed = self._all.packed
        return max(
            self._place, key=lambda process: packed[self._place[process]].end_ns, default=None
        )

    def of(self, process: int) -> Lane:
        """Return a process's lane."""
        if process not in self._made:
            self._made[process] = self._make(process)
        return self._made[process]

    def _make(self, process: int) -> Lane:
        pieces = self._all.of_worker(self._place[process])
        moment, last = self._awaited(process)
        # Of what stands waiting, neighbours are one wait.
        is_wait = pieces.category == WAIT
        edges = pieces.bounds[np.flatnonzero(np.diff(is_wait, prepend=False, append=False))]
        begins, ends = edges[::2], edges[1::2]
        row = np.searchsorted(moment, ends, side="right") - 1
        to = np.where(moment[row] > begins, self._of_rank(last[row]), -1)
        kept = (to >= 0) & (to != process)
        return Lane(int(pieces.bounds[0]), int(pieces.bounds[-1]), ends[kept], to[kept])

    def _of_rank(self, ranks: Int32s) -> Ints:
        """Return the processes of ranks; -1 for one that is none."""
        at = np.minimum(np.searchsorted(self._ranks, ranks), len(self._ranks) - 1)
        return np.where(self._ranks[at] == ranks, self._processes[at], -1)

    def _awaited(self, process: int) -> tuple[Ints, Int32s]:
        """Return when others came for whom a process waited, in order after `NEVER`, and their ranks."""
        messages = self._messages.filter(process=process)
        moments = [np.array([NEVER]), messages["end_ns"].to_numpy()]
        ranks = [np.array([-1]), messages["rank"].to_numpy()]
        for grid in self._calls:
            for column in np.flatnonzero(grid.processes == process).tolist():
                there = (grid.last_ns != NEVER) & (grid.start_ns[:, column] != NEVER)
                waited = np.flatnonzero(there & (grid.wait_of(column) > 0))
                moments.append(grid.last_ns[waited])
                ranks.append(grid.last_rank[waited])
        moment = np.concatenate(moments)
        order = np.argsort(moment, kind="stable")
        return moment[order], np.concatenate(ranks)[order]


def walk_path(lanes: Lanes) -> pl.DataFrame:
    """Return the path's intervals, the last first; they touch, from the job's end to a rank's begin."""
    process = lanes.last
    if process is None:
        return pl.DataFrame(schema=PATH_COLUMNS)
    now = lanes.of(process).end_ns
    rows = []
    while True:
        lane = lanes.of(process)
        wait = int(np.searchsorted(lane.wait_end, now)) - 1
        if wait < 0 or int(lane.to[wait]) not in lanes:
            rows.append((process, min(lane.begin_ns, now), now))
            return pl.DataFrame(rows, schema=PATH_COLUMNS, orient="row")
        reached = int(lane.wait_end[wait])  # earlier than `now`, so the walk ends
        rows.append((process, reached, now))
        process, now = int(lane.to[wait]), reached
