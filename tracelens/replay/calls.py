"""Collectives in a replay: a call departs when all ranks have come and the call before is complete.

Calls of a communicator that are in flight hold the wire one after the other, and a rank that does not
wait for one needs it when it next waits, or updates weights. A call with a root departs for a rank when
the root has come; its root departs when all have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.thread_activity import training_threads
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

    `begin_ns`, `end_ns`, `is_blocking` and `thread` are [call, rank], `worker` is [rank], the rest is
    [call]. `bucket` and `root` (a column) are negative where unknown. A call is on the wire from
    `departure_ns` to `completion_ns`, when the first rank leaves it; `is_queued` ones could not depart
    before the call before was complete. Call i departs at event `first_event` + 2 i, and is complete at
    the next event.
    """

    communicator: str
    op: int
    worker: Ints
    begin_ns: Ints
    end_ns: Ints
    is_blocking: Flags
    thread: Ints
    step: Ints
    nbytes: Ints
    bucket: Ints
    root: Ints
    departure_ns: Ints
    completion_ns: Ints
    is_queued: Flags
    first_event: int = 0

    @property
    def count(self) -> int:
        """The number of calls."""
        return len(self.departure_ns)

    def can_be_joined(self, communicator: str, op: str) -> bool:
        """Return True if these are calls of a communicator and operation that have no root."""
        is_named = self.communicator == communicator and self.operation == op
        return is_named and not self.is_rooted

    @property
    def operation(self) -> str:
        """The name of the operation."""
        return COLLECTIVES[self.op]

    @property
    def cost_line(self) -> CostLine:
        """The operations that take alike."""
        return CostLine(self.operation, len(self.worker), network=True)

    @property
    def departures(self) -> Ints:
        """The event at which each call departs."""
        return self.first_event + 2 * np.arange(self.count)

    @property
    def is_rooted(self) -> bool:
        """Whether ranks wait for a root, or a root for them, instead of all for all."""
        return self.op in (*FROM_ROOT, *TO_ROOT)

    @property
    def in_flight(self) -> Flags:
        """Which calls no training thread was in, [call]."""
        return ~np.asarray(self.is_blocking.any(axis=1))

    @property
    def sides(self) -> Sides:
        """Every rank in every call, call by call."""
        workers = np.broadcast_to(self.worker, self.begin_ns.shape).ravel()
        times_ns = self.begin_ns.ravel(), self.end_ns.ravel()
        return Sides(workers, *times_ns, self.is_blocking.ravel())

    def end_when_noticed(self, timeline: Timeline) -> Calls:
        """Let calls end when training threads noticed it, or could have.

        If a call was complete long before a rank waited for it, that rank's end says only when the rank
        looked; then the call is over when it is complete.
        """
        sides = self.sides
        end_ns = sides.end_when_noticed(timeline).end_ns
        first_end_ns = end_ns.reshape(self.end_ns.shape).min(axis=1)
        completion_ns = np.maximum(first_end_ns, self.departure_ns)
        if not self.is_rooted:
            over_ns = np.repeat(completion_ns, len(self.worker))
            is_late = ~sides.is_blocking & timeline.looked_late(sides.worker, over_ns, end_ns)
            end_ns = np.where(is_late, over_ns, end_ns)
        end_ns = end_ns.reshape(self.end_ns.shape)
        return replace(self, end_ns=end_ns, completion_ns=completion_ns)

    def end_earlier(self, end_ns: Ints) -> Calls:
        """Return the calls with earlier ends, [call * rank]; each is complete at its first end."""
        end_ns = end_ns.reshape(self.end_ns.shape)
        completion_ns = np.minimum(self.completion_ns, end_ns.min(axis=1))
        completion_ns = np.maximum(completion_ns, self.departure_ns)
        return replace(self, end_ns=end_ns, completion_ns=completion_ns)

    def add_edges(self, edges: EdgeList, threads: Threads) -> None:
        """Add what departures, completions and ranks' ends follow."""
        sides, shape = self.sides, self.begin_ns.shape
        begin_event, end_event = threads.find_sides(sides)
        end_event = np.where(
            end_event < 0, threads.find_next_needs(sides.worker, sides.end_ns), end_event
        )
        if self.is_rooted:
            self._add_rooted(edges, begin_event.reshape(shape), end_event.reshape(shape))
            return
        departures = self.departures
        departure_of_rank = np.repeat(departures, len(self.worker))
        edges.add(begin_event, departure_of_rank)
        edges.add(departures[:-1] + 1, departures[1:], is_present=self.is_queued[1:])
        wire_ns = self.completion_ns - self.departure_ns
        self._add_sized(edges, departures, departures + 1, wire_ns, np.ones_like(self.is_queued))
        leaving_ns = (self.end_ns - self.completion_ns[:, None]).ravel()
        # The last rank of an implicit call may have been there for no time at all.
        edges.add(departure_of_rank + 1, end_event, leaving_ns, begin_event != end_event)

    def _add_rooted(self, edges: EdgeList, begin_event: Ints, end_event: Ints) -> None:
        """Add that ranks wait for the root, or the root for all, by events, [call, rank]."""
        root = np.maximum(self.root, 0)[:, None]
        is_to_root = self.op in TO_ROOT
        last_ns = self.begin_ns.max(axis=1, keepdims=True)
        root_ns = np.take_along_axis(self.begin_ns, root, axis=1)
        awaited_ns = last_ns if is_to_root else root_ns
        is_root = root == np.arange(len(self.worker))
        waits = (is_root == is_to_root) & (awaited_ns <= self.end_ns) & (self.root >= 0)[:, None]
        start_ns = np.where(waits, np.maximum(awaited_ns, self.begin_ns), self.begin_ns)
        lag_ns = self.end_ns - start_ns
        self._add_sized(edges, begin_event, end_event, lag_ns, np.ones_like(waits))
        if is_to_root:
            end_event, lag_ns, waits = (
                np.take_along_axis(of, root, axis=1) for of in (end_event, lag_ns, waits)
            )
        else:
            begin_event = np.take_along_axis(begin_event, root, axis=1)
        self._add_sized(edges, begin_event, end_event, lag_ns, waits)

    def _add_sized(
        self, edges: EdgeList, source: Ints, target: Ints, lag_ns: Ints, is_present: Flags
    ) -> None:
        """Add edges whose lag depends on the bytes of calls, [call] or [call, rank]."""
        columns = np.broadcast_arrays(source, target, lag_ns, is_present)
        edges_per_call = columns[0].size // self.count
        edges.add(
            *(column.ravel() for column in columns),
            cost_line=self.cost_line,
            nbytes=np.repeat(self.nbytes, edges_per_call),
            step=np.repeat(self.step, edges_per_call),
            communicator=self.communicator,
        )

    def find_rank_edges(self, edges: EdgeTable, threads: Threads) -> tuple[Indices, Indices]:
        """Return the edges of ranks to departures and from completions, [call, rank]; -1 = none."""
        column_of = np.full(len(threads), -1)
        column_of[self.worker] = np.arange(len(self.worker))
        to_departure, from_completion = (
            np.full(self.begin_ns.shape, -1, np.int64) for _ in range(2)
        )
        for offset, matrix, at_rank, at_call in (
            (0, to_departure, edges.source, edges.target),
            (1, from_completion, edges.target, edges.source),
        ):
            event = at_call - self.first_event
            is_of_calls = (event >= 0) & (event < 2 * self.count) & (event % 2 == offset)
            rows = np.flatnonzero((at_rank < threads.event_count) & is_of_calls)
            column = column_of[threads.find_owners(at_rank[rows])]
            matrix[event[rows] // 2, column] = rows
        return to_departure, from_completion


def select_complete_calls(trace: Trace, begins_ns: Ints, ends_ns: Ints) -> Iterator[Calls]:
    """Yield the calls that lie between the begin and end of all their workers, [worker]."""
    training = training_threads(trace)
    worker_of = {process: at for at, process in enumerate(trace.workers["process"].to_list())}
    for grid in trace.calls:
        processes = grid.processes.tolist()
        if not worker_of.keys() >= set(processes):
            continue
        worker = np.array([worker_of[process] for process in processes], np.int64)
        is_inside = (grid.last_ns >= begins_ns.min()) & (grid.last_ns <= ends_ns.max())
        rows = np.flatnonzero(is_inside & (grid.last_ns != NEVER))
        rows = rows[grid.take(rows).completed.all(axis=1)]
        begin_ns, end_ns = take_rows(grid.start_ns, rows), take_rows(grid.end_ns, rows)
        is_within = (begin_ns >= begins_ns[worker]) & (end_ns <= ends_ns[worker])
        rows = rows[is_within.all(axis=1)]
        ops = grid.first_value("op")[rows]
        for op in np.unique(ops).tolist():
            yield _select_calls(grid, rows[ops == op], worker, training)


def _select_calls(grid: CallGrid, rows: Indices, worker: Ints, training: Ints) -> Calls:
    """Return calls of one operation; `training` is the training thread of each process."""
    begin_ns, end_ns = take_rows(grid.start_ns, rows), take_rows(grid.end_ns, rows)
    is_blocking = np.asarray((grid.thread == training[grid.processes])[rows])
    arrival_ns, first_end_ns = begin_ns.max(axis=1), end_ns.min(axis=1)
    completion_ns = np.maximum(first_end_ns, arrival_ns)
    previous_ns = np.concatenate([arrival_ns[:1], completion_ns[:-1]])
    is_queued = ~is_blocking.any(axis=1) & (previous_ns <= completion_ns)
    is_queued[:1] = False
    departure_ns = np.where(is_queued, np.maximum(arrival_ns, previous_ns), arrival_ns)
    is_root = grid.first_value("peer")[rows][:, None] == grid.ranks
    return Calls(
        communicator=grid.uid,
        op=int(grid.first_value("op")[rows[0]]),
        worker=worker,
        begin_ns=begin_ns,
        end_ns=end_ns,
        is_blocking=is_blocking,
        thread=np.asarray(grid.thread[rows]),
        step=grid.first_value("step")[rows].astype(np.int64),
        nbytes=grid.first_value("nbytes")[rows],
        bucket=grid.first_value("bucket")[rows],
        root=np.where(is_root.any(axis=1), is_root.argmax(axis=1), -1),
        departure_ns=departure_ns,
        completion_ns=np.maximum(completion_ns, departure_ns),
        is_queued=is_queued,
    )


def end_by_waits(
    calls: Sequence[Calls], timeline: Timeline, messages: Sequence[Sides]
) -> list[Calls]:
    """Let calls end with the waits of their ranks in which nothing else ended.

    A rank that waits in a span for a call in flight resumes when the call is over. Another thread may
    note that later, as it got no processor; then the end of the wait tells it. If several calls were
    noted later, the first one ended the wait.
    """
    if not calls:
        return []
    sides = Sides.join(call.sides for call in calls)
    arrivals_ns = [np.maximum(call.begin_ns, call.departure_ns[:, None]).ravel() for call in calls]
    counts = [call.begin_ns.size for call in calls]
    is_rooted = np.repeat([call.is_rooted for call in calls], counts)
    # All positions are on the line of the workers.
    arrived = timeline.locate(sides.worker, np.concatenate(arrivals_ns))
    noted = timeline.locate(sides.worker, sides.end_ns)
    message_ends = [timeline.locate(side.worker, side.end_ns) for side in messages]
    known_ends = np.sort(np.concatenate([noted, *message_ends]))
    wait_begins, wait_ends = timeline.wait_stretches
    ended_before, ended_after = (
        np.searchsorted(known_ends, positions, side="right")
        for positions in (wait_begins, timeline.blocked_until(wait_ends))
    )
    is_unexplained = np.append(ended_after <= ended_before, False)
    wait = np.searchsorted(wait_ends, noted) - 1
    is_late = ~sides.is_blocking & ~is_rooted & is_unexplained[wait]
    is_late &= np.append(wait_ends, -1)[wait] > arrived
    late = np.flatnonzero(is_late)
    by_wait = late[np.lexsort((noted[late], wait[late]))]
    first_noted = by_wait[np.diff(wait[by_wait], prepend=-1) != 0]
    sides.end_ns[first_noted] -= noted[first_noted] - wait_ends[wait[first_noted]]
    ends_ns = np.split(sides.end_ns, np.cumsum(counts)[:-1])
    return [call.end_earlier(of_call) for call, of_call in zip(calls, ends_ns, strict=True)]
