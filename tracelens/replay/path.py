"""The critical path of a run, walked backwards over the partition of every rank's time.

The walk begins at the job's end and always goes to what had to be over before. Mostly that is what the
same rank did before. Where the rank waited for the last rank of a collective, or for the other side of a
message, the walk continues with that rank, from the time at which it arrived. The event graph
(`event_graph.py`) is not needed.
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
    """The begin and end of one rank's time, and its waits for other ranks.

    `wait_end_ns` is ascending; `cause_process` is that whose arrival ended each wait.
    """

    begin_ns: int
    end_ns: int
    wait_end_ns: Ints
    cause_process: Ints


class Lanes:
    """The lanes of all workers that recorded a step; each is made when the walk reaches it."""

    def __init__(self, trace: Trace, phases: Phases) -> None:
        self._calls = trace.calls
        self._messages = trace.message_waits
        self._ranks, self._processes = trace.workers.select("rank", "process").to_numpy().T
        self._pieces = phases.pieces
        self._row = {process: row for row, process in enumerate(phases.pieces.processes)}
        self._lanes: dict[int, Lane] = {}

    def __contains__(self, process: int) -> bool:
        """Return True if a process recorded steps."""
        return process in self._row

    @property
    def last_process(self) -> int | None:
        """The process that ends last; None without any."""
        packed = self._pieces.store
        return max(self._row, key=lambda process: packed[self._row[process]].end_ns, default=None)

    def find_lane(self, process: int) -> Lane:
        """Return a process's lane."""
        if process not in self._lanes:
            self._lanes[process] = self._make_lane(process)
        return self._lanes[process]

    def _make_lane(self, process: int) -> Lane:
        """Return a process's time, and the waits that the arrival of another, known process ended."""
        pieces = self._pieces.unpack_worker(self._row[process])
        arrival_ns, arriving_rank = self._list_arrivals(process)
        # Neighbouring pieces of waiting are one wait.
        is_wait = pieces.category_codes == WAIT
        bounds_ns = pieces.bounds_ns[np.flatnonzero(np.diff(is_wait, prepend=False, append=False))]
        wait_begin_ns, wait_end_ns = bounds_ns[::2], bounds_ns[1::2]
        # The latest arrival before each end.
        latest = np.searchsorted(arrival_ns, wait_end_ns, side="right") - 1
        arriving_process = self._find_processes(arriving_rank[latest])
        cause = np.where(arrival_ns[latest] > wait_begin_ns, arriving_process, -1)
        has_cause = (cause >= 0) & (cause != process)
        begin_ns, end_ns = int(pieces.bounds_ns[0]), int(pieces.bounds_ns[-1])
        return Lane(
            begin_ns, end_ns, wait_end_ns=wait_end_ns[has_cause], cause_process=cause[has_cause]
        )

    def _find_processes(self, ranks: Int32s) -> Ints:
        """Return the processes of ranks; -1 for ranks without one."""
        row = np.minimum(np.searchsorted(self._ranks, ranks), len(self._ranks) - 1)
        return np.where(self._ranks[row] == ranks, self._processes[row], -1)

    def _list_arrivals(self, process: int) -> tuple[Ints, Int32s]:
        """Return when others arrived for whom a process waited, ns, ascending, and their ranks.

        The first entry is `NEVER`, of rank -1.
        """
        messages = self._messages.filter(process=process)
        arrivals_ns = [np.array([NEVER]), messages["end_ns"].to_numpy()]
        ranks = [np.array([-1]), messages["rank"].to_numpy()]
        for grid in self._calls:
            for column in np.flatnonzero(grid.processes == process).tolist():
                is_known = (grid.last_arrival_ns != NEVER) & (grid.start_ns[:, column] != NEVER)
                awaited_calls = np.flatnonzero(is_known & (grid.wait_ns_of(column) > 0))
                arrivals_ns.append(grid.last_arrival_ns[awaited_calls])
                ranks.append(grid.last_rank_of_call[awaited_calls])
        arrival_ns = np.concatenate(arrivals_ns)
        order = np.argsort(arrival_ns, kind="stable")
        return arrival_ns[order], np.concatenate(ranks)[order]


def walk_path(lanes: Lanes) -> pl.DataFrame:
    """Return the path's intervals, the last first: a row with process, begin and end, ns."""
    process = lanes.last_process
    if process is None:
        return pl.DataFrame(schema=PATH_COLUMNS)
    end_ns = lanes.find_lane(process).end_ns
    intervals = []
    while True:
        lane = lanes.find_lane(process)
        wait = int(np.searchsorted(lane.wait_end_ns, end_ns)) - 1  # the last one before `end_ns`
        if wait < 0 or int(lane.cause_process[wait]) not in lanes:
            intervals.append((process, min(lane.begin_ns, end_ns), end_ns))
            return pl.DataFrame(intervals, schema=PATH_COLUMNS, orient="row")
        wait_end_ns = int(lane.wait_end_ns[wait])  # earlier than `end_ns`, so the walk ends
        intervals.append((process, wait_end_ns, end_ns))
        process, end_ns = int(lane.cause_process[wait]), wait_end_ns
