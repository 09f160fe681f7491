"""Collectives in a replay: a call departs when all ranks have come and the call before is complete.

Calls of a communicator that are in flight hold the wire one after the other, and a rank that does not
wait for one needs it when it next waits, or updates weights. A call with a root departs for a rank when
the root has come; its root departs when all have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.thread_activity import list_training_threads
from tracelens.model.calls import FROM_ROOT, NEVER, TO_ROOT, take_rows
from tracelens.replay.edges import CostLine
from tracelens.replay.threads import Sides
from tracelens.schema.vocabulary import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.arrays import Flags, Indices, Ints
    from tracelens.model.calls import CallGrid
    from tracelens.model.trace import Trace
    from tracelens.replay.edges import EdgeList, EdgeTable
    from tracelens.replay.threads import Threads
    from tracelens.replay.timeline import Timeline

__all__ = ["IMPLICIT", "REDUCTIONS", "Calls", "end_by_waits", "select_complete_calls"]

IMPLICIT: Final = "implicit"  # communicator of calls that no span shows
REDUCTIONS: Final = ("allreduce", "reduce_scatter")


@dataclass(frozen=True, eq=False)
class Calls:
    """Calls of one communicator and operation that all ranks came to and left, in their order.

    `begin_ns`, `end_ns`, `is_blocking` and `thread` are [call, rank], `workers` is [rank], the rest is
    [call]. `bucket` and `root_column` are negative where unknown. A call is on the wire from
    `departure_ns` to `completion_ns`, when the first rank leaves it; `is_queued` ones could not depart
    before the call before was complete. Call i departs at event `first_event` + 2 i, and is complete at
    the next event. `op_code` is an index of `COLLECTIVES`.
    """

    communicator: str
    op_code: int
    workers: Ints
    begin_ns: Ints
    end_ns: Ints
    is_blocking: Flags
    thread: Ints
    step_numbers: Ints
    nbytes: Ints
    bucket: Ints
    root_column: Ints
    departure_ns: Ints
    completion_ns: Ints
    is_queued: Flags
    first_event: int = 0

    @property
    def call_count(self) -> int:
        """The number of calls."""
        return len(self.departure_ns)

    def can_be_joined(self, communicator: str, op: str) -> bool:
        """Return True if these are calls of a communicator and operation that have no root."""
        is_named = self.communicator == communicator and self.operation == op
        return is_named and not self.is_rooted

    @property
    def operation(self) -> str:
        """The name of the operation."""
        return COLLECTIVES[self.op_code]

    @property
    def cost_line(self) -> CostLine:
        """The line by which such operations take as long as their bytes say."""
        return CostLine(self.operation, is_network=True, rank_count=len(self.workers))

    @property
    def departure_events(self) -> Ints:
        """The event at which each call departs, [call]; it is complete at the next one."""
        return self.first_event + 2 * np.arange(self.call_count)

    @property
    def is_rooted(self) -> bool:
        """Whether ranks wait for a root, or a root for them, instead of all for all."""
        return self.op_code in (*FROM_ROOT, *TO_ROOT)

    @property
    def is_in_flight(self) -> Flags:
        """Which calls no training thread was in, [call]."""
        return ~np.asarray(self.is_blocking.any(axis=1))

    @property
    def sides(self) -> Sides:
        """Every rank in every call, call by call, [call * rank]."""
        workers = np.broadcast_to(self.workers, self.begin_ns.shape).ravel()
        times_ns = self.begin_ns.ravel(), self.end_ns.ravel()
        return Sides(workers, *times_ns, self.is_blocking.ravel())

    def end_when_noticed(self, timeline: Timeline) -> Calls:
        """Return the calls, ended when training threads noticed it, or could have.

        If a call was complete long before a rank waited for it, that rank's end says only when the rank
        looked; then the call is over when it is complete.
        """
        sides = self.sides  # [call * rank], as all times of ranks but the first ends
        end_ns = sides.end_when_noticed(timeline).end_ns
        first_end_ns = end_ns.reshape(self.end_ns.shape).min(axis=1)
        completion_ns = np.maximum(first_end_ns, self.departure_ns)
        if not self.is_rooted:
            over_ns = np.repeat(completion_ns, len(self.workers))
            is_late = ~sides.is_blocking & timeline.has_looked_late(sides.workers, over_ns, end_ns)
            end_ns = np.where(is_late, over_ns, end_ns)
        end_ns = end_ns.reshape(self.end_ns.shape)
        return replace(self, end_ns=end_ns, completion_ns=completion_ns)

    def end_earlier(self, end_ns: Ints) -> Calls:
        """Return the calls with earlier ends, ns, [call * rank]; each is complete at its first end."""
        end_ns = end_ns.reshape(self.end_ns.shape)
        completion_ns = np.minimum(self.completion_ns, end_ns.min(axis=1))
        completion_ns = np.maximum(completion_ns, self.departure_ns)
        return replace(self, end_ns=end_ns, completion_ns=completion_ns)

    def add_edges(self, edges: EdgeList, threads: Threads) -> None:
        """Add edges from begins on ranks to departures, to completions, and to ends on ranks."""
        sides, shape = self.sides, self.begin_ns.shape
        begin_event, end_event = threads.find_side_events(sides)  # [call * rank]
        # The end of a call in flight is no event of a rank that needs it only later.
        next_need = threads.find_next_need_events(sides.workers, sides.end_ns)
        end_event = np.where(end_event < 0, next_need, end_event)
        if self.is_rooted:
            self._add_rooted(edges, begin_event.reshape(shape), end_event.reshape(shape))
            return
        departure = self.departure_events  # event, [call]; the next one is the call's completion
        departure_of_rank = np.repeat(departure, len(self.workers))
        edges.add(begin_event, departure_of_rank)
        edges.add(departure[:-1] + 1, departure[1:], is_present=self.is_queued[1:])
        wire_ns = self.completion_ns - self.departure_ns
        self._add_cost_edges(edges, departure, departure + 1, wire_ns, np.ones_like(self.is_queued))
        leaving_ns = (self.end_ns - self.completion_ns[:, None]).ravel()
        # The last rank of an implicit call may have been there for no time at all.
        edges.add(departure_of_rank + 1, end_event, leaving_ns, begin_event != end_event)

    def _add_rooted(self, edges: EdgeList, begin_events: Ints, end_events: Ints) -> None:
        """Add edges from begins to ends of calls in which ranks wait for a root, or a root for them.

        `begin_events` and `end_events` are those of each rank, [call, rank].
        """
        root = np.maximum(self.root_column, 0)[:, None]
        is_to_root = self.op_code in TO_ROOT
        last_begin_ns = self.begin_ns.max(axis=1, keepdims=True)
        root_begin_ns = np.take_along_axis(self.begin_ns, root, axis=1)
        awaited_ns = last_begin_ns if is_to_root else root_begin_ns
        is_root = root == np.arange(len(self.workers))
        is_root_known = (self.root_column >= 0)[:, None]
        waits = (is_root == is_to_root) & (awaited_ns <= self.end_ns) & is_root_known
        wait_end_ns = np.where(waits, np.maximum(awaited_ns, self.begin_ns), self.begin_ns)
        lag_ns = self.end_ns - wait_end_ns
        self._add_cost_edges(edges, begin_events, end_events, lag_ns, np.ones_like(waits))
        if is_to_root:
            end_events, lag_ns, waits = (
                np.take_along_axis(matrix, root, axis=1) for matrix in (end_events, lag_ns, waits)
            )
        else:
            begin_events = np.take_along_axis(begin_events, root, axis=1)
        self._add_cost_edges(edges, begin_events, end_events, lag_ns, waits)

    def _add_cost_edges(
        self, edges: EdgeList, source: Ints, target: Ints, lag_ns: Ints, is_present: Flags
    ) -> None:
        """Add edges between events whose lag depends on the calls' bytes, [call] or [call, rank]."""
        columns = [
            column.ravel() for column in np.broadcast_arrays(source, target, lag_ns, is_present)
        ]
        edges_per_call = len(columns[0]) // self.call_count
        edges.add(
            *columns,
            cost_line=self.cost_line,
            nbytes=np.repeat(self.nbytes, edges_per_call),
            step=np.repeat(self.step_numbers, edges_per_call),
            communicator=self.communicator,
        )

    def find_rank_edges(self, edges: EdgeTable, threads: Threads) -> tuple[Indices, Indices]:
        """Return edges from ranks to departures, from completions to ranks, [call, rank]; -1 = none."""
        column_of_worker = np.full(threads.worker_count, -1)
        column_of_worker[self.workers] = np.arange(len(self.workers))
        to_departure, from_completion = (
            np.full(self.begin_ns.shape, -1, np.int64) for _ in range(2)
        )
        for is_completion, edge_rows, rank_event, call_event in (
            (False, to_departure, edges.source_events, edges.target_events),
            (True, from_completion, edges.target_events, edges.source_events),
        ):
            number = call_event - self.first_event  # two events a call: departure, completion
            is_of_calls = (
                (number >= 0) & (number < 2 * self.call_count) & (number % 2 == is_completion)
            )
            rows = np.flatnonzero((rank_event < threads.event_count) & is_of_calls)
            column = column_of_worker[threads.find_workers(rank_event[rows])]
            edge_rows[number[rows] // 2, column] = rows
        return to_departure, from_completion


def select_complete_calls(trace: Trace, begins_ns: Ints, ends_ns: Ints) -> Iterator[Calls]:
    """Yield calls that all ranks came to and left between each worker's begin and end, ns, [worker]."""
    training_thread = list_training_threads(trace)  # [process]
    processes_of_workers = trace.workers["process"].to_list()
    worker_of_process = {process: worker for worker, process in enumerate(processes_of_workers)}
    for grid in trace.calls:  # of a communicator: its calls, [call, rank]
        processes = grid.processes.tolist()
        if not worker_of_process.keys() >= set(processes):
            continue
        workers = np.array([worker_of_process[process] for process in processes], np.int64)
        may_be_inside = (grid.last_arrival_ns >= begins_ns.min()) & (
            grid.last_arrival_ns <= ends_ns.max()
        )
        rows = np.flatnonzero(may_be_inside & (grid.last_arrival_ns != NEVER))
        rows = rows[grid.take_calls(rows).is_completed.all(axis=1)]
        begin_ns, end_ns = take_rows(grid.start_ns, rows), take_rows(grid.end_ns, rows)
        is_inside = (begin_ns >= begins_ns[workers]) & (end_ns <= ends_ns[workers])
        rows = rows[is_inside.all(axis=1)]
        ops = grid.first_value_of_calls("op")[rows]
        for op in np.unique(ops).tolist():
            yield _select_calls(grid, rows[ops == op], workers, training_thread)


def _select_calls(grid: CallGrid, rows: Indices, workers: Ints, training_thread: Ints) -> Calls:
    """Return calls of one operation in some rows of a grid; `workers` is [rank], threads [process]."""
    begin_ns, end_ns = take_rows(grid.start_ns, rows), take_rows(grid.end_ns, rows)
    is_blocking = np.asarray((grid.thread == training_thread[grid.processes])[rows])
    arrival_ns, first_end_ns = begin_ns.max(axis=1), end_ns.min(axis=1)
    completion_ns = np.maximum(first_end_ns, arrival_ns)
    previous_completion_ns = np.concatenate([arrival_ns[:1], completion_ns[:-1]])
    is_queued = ~is_blocking.any(axis=1) & (previous_completion_ns <= completion_ns)
    is_queued[:1] = False  # no call is before it
    departure_ns = np.where(is_queued, np.maximum(arrival_ns, previous_completion_ns), arrival_ns)
    is_root = grid.first_value_of_calls("peer")[rows][:, None] == grid.ranks
    return Calls(
        communicator=grid.communicator_uid,
        op_code=int(grid.first_value_of_calls("op")[rows[0]]),
        workers=workers,
        begin_ns=begin_ns,
        end_ns=end_ns,
        is_blocking=is_blocking,
        thread=np.asarray(grid.thread[rows]),
        step_numbers=grid.first_value_of_calls("step")[rows].astype(np.int64),
        nbytes=grid.first_value_of_calls("nbytes")[rows],
        bucket=grid.first_value_of_calls("bucket")[rows],
        root_column=np.where(is_root.any(axis=1), is_root.argmax(axis=1), -1),
        departure_ns=departure_ns,
        completion_ns=np.maximum(completion_ns, departure_ns),
        is_queued=is_queued,
    )


def end_by_waits(
    calls: Sequence[Calls], timeline: Timeline, messages: Sequence[Sides]
) -> list[Calls]:
    """Return the calls, ended with the waits of their ranks in which nothing else ended.

    A rank that waits in a span for a call in flight resumes when the call is over. Another thread may
    note that later, as it got no processor; then the end of the wait tells it. If several calls were
    noted later, the first one ended the wait.
    """
    if not calls:
        return []
    sides = Sides.join(call.sides for call in calls)  # a row for each call and rank, as all below
    departures_ns = [
        np.maximum(call.begin_ns, call.departure_ns[:, None]).ravel() for call in calls
    ]
    counts = [call.begin_ns.size for call in calls]
    is_rooted = np.repeat([call.is_rooted for call in calls], counts)
    # Positions on the timeline are a worker and a time.
    departure = timeline.to_positions(sides.workers, np.concatenate(departures_ns))
    noted_end = timeline.to_positions(sides.workers, sides.end_ns)
    message_ends = [timeline.to_positions(side.workers, side.end_ns) for side in messages]
    known_ends = np.sort(np.concatenate([noted_end, *message_ends]))
    wait_begins, wait_ends = timeline.wait_stretches
    ends_before, ends_until = (
        np.searchsorted(known_ends, positions, side="right")
        for positions in (wait_begins, timeline.find_blocked_ends(wait_ends))
    )
    is_unexplained = np.append(ends_until <= ends_before, False)  # [wait]
    wait = np.searchsorted(wait_ends, noted_end) - 1  # the last one before each noted end
    is_noted_late = ~sides.is_blocking & ~is_rooted & is_unexplained[wait]
    is_noted_late &= np.append(wait_ends, -1)[wait] > departure
    rows = np.flatnonzero(is_noted_late)
    by_wait = rows[np.lexsort((noted_end[rows], wait[rows]))]
    first_noted = by_wait[np.diff(wait[by_wait], prepend=-1) != 0]
    sides.end_ns[first_noted] -= noted_end[first_noted] - wait_ends[wait[first_noted]]
    ends_ns = np.split(sides.end_ns, np.cumsum(counts)[:-1])
    return [call.end_earlier(end_ns) for call, end_ns in zip(calls, ends_ns, strict=True)]
