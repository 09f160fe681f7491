"""Collectives in a replay: they go when all have come and the one before is through.

Calls of a communicator that are in flight hold the wire one after the other, and a rank that does not
wait for one needs it when it next waits, or updates weights. A call with a root goes for a rank as soon
as the root has come; its root goes when all have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.thread_activity import training_threads
from tracelens.model.calls import FROM_ROOT, NEVER, TO_ROOT, taken
from tracelens.replay.links import Line
from tracelens.replay.threads import Sides
from tracelens.schema.vocabulary import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.arrays import Flags, Indices, Ints
    from tracelens.model.calls import CallGrid
    from tracelens.model.trace import Trace
    from tracelens.replay.links import Links
    from tracelens.replay.threads import Threads
    from tracelens.replay.timeline import Timeline

__all__ = ["IMPLICIT", "Calls", "complete_calls", "end_waits"]

IMPLICIT: Final = "implicit"  # communicator of calls that no span shows
_ROOTED: Final = (*FROM_ROOT, *TO_ROOT)


@dataclass(frozen=True, eq=False)
class Calls:
    """Calls of one communicator and operation that all ranks came to and left, in their order.

    `start`, `end`, `stops` and `thread` are [call, rank], `worker` is [rank]; `bucket` is negative where
    that is not known. `on_wire` is from when on each was on the wire, and `through` when the first rank
    left it. `follows` says which could not go before the one before was through. In a replay, number i
    goes at moment `at` + 2 i and is through at the next one.
    """

    uid: str
    op: int
    worker: Ints
    start: Ints
    end: Ints
    stops: Flags
    thread: Ints
    step: Ints
    nbytes: Ints
    bucket: Ints
    root: Ints
    on_wire: Ints
    through: Ints
    follows: Flags
    at: int = 0

    @property
    def height(self) -> int:
        """How many there are."""
        return len(self.on_wire)

    def can_be_joined(self, communicator: str, op: str) -> bool:
        """Return True if these are calls of a communicator and operation that have no root."""
        is_named = self.uid == communicator and self.op == COLLECTIVES.index(op)
        return is_named and not self.is_rooted

    @property
    def line(self) -> Line:
        """What takes alike."""
        return Line(COLLECTIVES[self.op], len(self.worker), network=True)

    @property
    def wires(self) -> Ints:
        """The moment at which each goes."""
        return self.at + 2 * np.arange(self.height)

    @property
    def is_rooted(self) -> bool:
        """Whether ranks wait for a root, or a root for them, instead of all for all."""
        return self.op in _ROOTED

    @property
    def is_implicit(self) -> bool:
        """Whether no span shows them: they were inferred."""
        return self.uid == IMPLICIT

    @property
    def in_flight(self) -> Flags:
        """Which calls no training thread was in, [call]."""
        return ~np.asarray(self.stops.any(axis=1))

    @property
    def sides(self) -> Sides:
        """Every rank in every call."""
        everyone = np.broadcast_to(self.worker, self.start.shape).ravel()
        return Sides(everyone, self.start.ravel(), self.end.ravel(), self.stops.ravel())

    def noticed(self, timeline: Timeline) -> Calls:
        """Return them with ends when training threads noticed them, or could have.

        Of a call that was through long before its rank waited for it, that rank's end says only when it
        looked: it was over when it was through.
        """
        sides = self.sides
        end = sides.noticed(timeline).end
        through = np.maximum(end.reshape(self.end.shape).min(axis=1), self.on_wire)
        if not self.is_rooted:
            over = np.repeat(through, len(self.worker))
            late = ~sides.stops & timeline.looked_late(sides.worker, over, end)
            end = np.where(late, over, end)
        return replace(self, end=end.reshape(self.end.shape), through=through)

    def end_earlier(self, end: Ints) -> Calls:
        """Return them with earlier ends, given call by call; each was through with its first one."""
        end = end.reshape(self.end.shape)
        through = np.maximum(np.minimum(self.through, end.min(axis=1)), self.on_wire)
        return replace(self, end=end, through=through)

    def add_links(self, links: Links, threads: Threads) -> None:
        """Add what they follow."""
        sides, shape = self.sides, self.start.shape
        begin, end = threads.find_both(sides)
        end = np.where(end < 0, threads.find_needed(sides.worker, sides.end), end)
        if self.is_rooted:
            self._add_rooted(links, begin.reshape(shape), end.reshape(shape))
            return
        on_wire = self.wires
        everyone = np.repeat(on_wire, len(self.worker))
        links.add(begin, everyone, np.zeros(len(everyone)))
        links.add(on_wire[:-1] + 1, on_wire[1:], np.zeros(self.height - 1), self.follows[1:])
        wire = self.through - self.on_wire
        self._add_sized(links, on_wire, on_wire + 1, wire, np.ones(self.height, np.bool_))
        leaves = self.end - self.through[:, None]
        # Who came last to an implicit call may have been there for no time at all.
        links.add(everyone + 1, end, leaves.ravel(), begin != end)

    def _add_rooted(self, links: Links, begin: Ints, end: Ints) -> None:
        """Add that ranks wait for the root, or the root for all, by moments, [call, rank]."""
        root = np.maximum(self.root, 0)[:, None]
        to_root = self.op in TO_ROOT
        last_ns = self.start.max(axis=1, keepdims=True)
        come_ns = last_ns if to_root else np.take_along_axis(self.start, root, axis=1)
        is_root = root == np.arange(len(self.worker))
        waits = (is_root == to_root) & (come_ns <= self.end) & (self.root >= 0)[:, None]
        lag = self.end - np.where(waits, np.maximum(come_ns, self.start), self.start)
        self._add_sized(links, begin, end, lag, np.ones_like(waits))
        if to_root:
            end, lag, waits = (np.take_along_axis(of, root, axis=1) for of in (end, lag, waits))
        else:
            begin = np.take_along_axis(begin, root, axis=1)
        self._add_sized(links, begin, end, lag, waits)

    def _add_sized(self, links: Links, source: Ints, target: Ints, lag: Ints, there: Flags) -> None:
        """Add links between moments that go by the bytes of calls, [call] or [call, rank]."""
        source, target, lag, there = (
            column.ravel() for column in np.broadcast_arrays(source, target, lag, there)
        )
        nbytes, step = (np.repeat(of, len(lag) // self.height) for of in (self.nbytes, self.step))
        links.add(
            source,
            target,
            lag,
            there,
            line=self.line,
            nbytes=nbytes,
            step=step,
            communicator=self.uid,
        )


def complete_calls(trace: Trace, first: Ints, last: Ints) -> Iterator[Calls]:
    """Yield the calls that lie within the steps of all their workers, between `first` and `last`."""
    training = training_threads(trace)
    place = {process: at for at, process in enumerate(trace.workers["process"].to_list())}
    for grid in trace.calls:
        if not set(grid.processes.tolist()) <= set(place):
            continue
        worker = np.array([place[process] for process in grid.processes.tolist()], np.int64)
        inside = (grid.last_ns >= first.min()) & (grid.last_ns <= last.max())
        rows = np.flatnonzero(inside & (grid.last_ns != NEVER))
        rows = rows[grid.taken(rows).completed.all(axis=1)]
        start, end = taken(grid.start_ns, rows), taken(grid.end_ns, rows)
        within = ((start >= first[worker]) & (end <= last[worker])).all(axis=1)
        rows = rows[within]
        ops = grid.first("op")[rows]
        for op in np.unique(ops).tolist():
            yield _of_one_kind(grid, rows[ops == op], worker, training)


def _of_one_kind(grid: CallGrid, rows: Indices, worker: Ints, training: Ints) -> Calls:
    start, end = taken(grid.start_ns, rows), taken(grid.end_ns, rows)
    stops = np.asarray((grid.thread == training[grid.processes])[rows])
    arrived, left = start.max(axis=1), end.min(axis=1)
    through = np.maximum(left, arrived)
    before = np.concatenate([arrived[:1], through[:-1]])
    flying = ~stops.any(axis=1)
    follows = flying & (before <= through) & (np.arange(len(rows)) > 0)
    on_wire = np.where(follows, np.maximum(arrived, before), arrived)
    return Calls(
        uid=grid.uid,
        op=int(grid.first("op")[rows[0]]),
        worker=worker,
        start=start,
        end=end,
        stops=stops,
        thread=np.asarray(grid.thread[rows]),
        step=grid.first("step")[rows].astype(np.int64),
        nbytes=grid.first("nbytes")[rows],
        bucket=grid.first("bucket")[rows],
        root=_roots(grid, rows),
        on_wire=on_wire,
        through=np.maximum(through, on_wire),
        follows=follows,
    )


def _roots(grid: CallGrid, rows: Indices) -> Ints:
    """Return the column of each call's root; -1 where it is not known."""
    is_root = grid.first("peer")[rows][:, None] == grid.ranks
    return np.where(is_root.any(axis=1), is_root.argmax(axis=1), -1)


def end_waits(calls: Sequence[Calls], timeline: Timeline, messages: Sequence[Sides]) -> list[Calls]:
    """Return calls with ends when ranks went on after waits in which nothing else ended.

    A rank that waits in a span for a call in flight goes on when the call is over. Where another thread
    noted that later, as it got no processor, the end of the wait tells it. Of several calls that were
    noted later the first one ended the wait.
    """
    if not calls:
        return []
    sides = Sides.join(call.sides for call in calls)
    all_arrived = [np.maximum(call.start, call.on_wire[:, None]).ravel() for call in calls]
    counts = [call.start.size for call in calls]
    is_rooted = np.repeat([call.is_rooted for call in calls], counts)
    # All positions are on the line of the workers.
    arrived = timeline.locate(sides.worker, np.concatenate(all_arrived))
    noted = timeline.locate(sides.worker, sides.end)
    message_ends = [timeline.locate(side.worker, side.end) for side in messages]
    known_ends = np.sort(np.concatenate([noted, *message_ends]))
    wait_begins, wait_ends = timeline.waits
    ended_before, ended_after = (
        np.searchsorted(known_ends, positions, side="right")
        for positions in (wait_begins, timeline.blocked_until(wait_ends))
    )
    is_explained = ended_after > ended_before
    wait = np.searchsorted(wait_ends, noted) - 1
    is_late = (wait >= 0) & ~sides.stops & ~is_rooted
    is_late[is_late] &= ~is_explained[wait[is_late]]
    is_late[is_late] &= wait_ends[wait[is_late]] > arrived[is_late]
    late = np.flatnonzero(is_late)
    by_wait = late[np.lexsort((noted[late], wait[late]))]
    first_noted = by_wait[np.diff(wait[by_wait], prepend=-1) != 0]
    sides.end[first_noted] -= noted[first_noted] - wait_ends[wait[first_noted]]
    ends = np.split(sides.end, np.cumsum(counts)[:-1])
    return [call.end_earlier(of_call) for call, of_call in zip(calls, ends, strict=True)]
