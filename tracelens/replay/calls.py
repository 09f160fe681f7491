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
from tracelens.model.columns import FOREVER
from tracelens.replay.links import Line
from tracelens.replay.threads import Sides
from tracelens.schema.vocabulary import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.arrays import Array, Flags, Indices, Ints
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

    `start`, `end`, `stops` and `thread` are [call, rank], `worker` is [rank]; `on_wire` is from when on
    each was on the wire, and `through` when the first rank left it. `follows` says which could not go
    before the one before was through.
    """

    uid: str
    op: int
    worker: Ints
    ranks: Ints
    start: Ints
    end: Ints
    stops: Flags
    thread: Ints
    step: Ints
    nbytes: Ints
    root: Ints
    on_wire: Ints
    through: Ints
    follows: Flags

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

    def add_links(self, links: Links, threads: Threads, first: int) -> None:
        """Add what they follow; each was on the wire from moment `first` + 2 x its place to the next."""
        sides, shape = self.sides, self.start.shape
        begin, end = (
            threads.find(sides.worker, at).reshape(shape) for at in (sides.begin, sides.end)
        )
        needed = threads.find_needed(sides.worker, sides.end).reshape(shape)
        end = np.where(end < 0, needed, end)
        if self.is_rooted:
            self._with_root(links, begin, end)
            return
        on_wire = first + 2 * np.arange(self.height)
        everyone = np.broadcast_to(on_wire[:, None], shape).ravel()
        links.add(begin.ravel(), everyone, np.zeros(everyone.shape))
        links.add(on_wire[:-1] + 1, on_wire[1:], np.zeros(self.height - 1), self.follows[1:])
        wire = self.through - self.on_wire
        links.add(
            on_wire,
            on_wire + 1,
            wire,
            line=self.line,
            nbytes=self.nbytes,
            step=self.step,
            communicator=self.uid,
        )
        leaves = self.end - self.through[:, None]
        # Who came last to an implicit call may have been there for no time at all.
        links.add(everyone + 1, end.ravel(), leaves.ravel(), (begin != end).ravel())

    def _with_root(self, links: Links, begin: Ints, end: Ints) -> None:
        """Add that ranks wait for the root, or the root for all."""
        rows = np.arange(self.height)
        root = np.maximum(self.root, 0)
        come = np.broadcast_to(self.start[rows, root][:, None], self.start.shape)
        if self.op in TO_ROOT:
            come = np.broadcast_to(self.start.max(axis=1)[:, None], self.start.shape)
        is_root = root[:, None] == np.arange(len(self.worker))
        waits = (is_root if self.op in TO_ROOT else ~is_root) & (come <= self.end)
        waits &= (self.root >= 0)[:, None]
        lag = self.end - np.where(waits, np.maximum(come, self.start), self.start)
        links.add(
            begin.ravel(),
            end.ravel(),
            lag.ravel(),
            line=self.line,
            nbytes=np.repeat(self.nbytes, len(self.worker)),
            step=np.repeat(self.step, len(self.worker)),
            communicator=self.uid,
        )
        for column in range(len(self.worker)):
            by = begin[rows, root] if self.op in FROM_ROOT else begin[:, column]
            of = end[:, column] if self.op in FROM_ROOT else end[rows, root]
            there = waits[:, column] if self.op in FROM_ROOT else waits[rows, root]
            after = lag[:, column] if self.op in FROM_ROOT else lag[rows, root]
            links.add(
                by,
                of,
                after,
                there,
                line=self.line,
                nbytes=self.nbytes,
                step=self.step,
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
        over = taken(grid.there, rows) & (taken(grid.end_ns, rows) != FOREVER)
        rows = rows[over.all(axis=1)]
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
        ranks=grid.ranks,
        start=start,
        end=end,
        stops=stops,
        thread=np.asarray(grid.thread[rows]),
        step=grid.first("step")[rows].astype(np.int64),
        nbytes=grid.first("nbytes")[rows],
        root=_roots(grid, rows),
        on_wire=on_wire,
        through=np.maximum(through, on_wire),
        follows=follows,
    )


def _roots(grid: CallGrid, rows: Indices) -> Ints:
    """Return the column of each call's root; -1 where it is not known."""
    peer: Array = grid.first("peer")[rows]
    found = np.full(len(rows), -1, np.int64)
    for column, rank in enumerate(grid.ranks.tolist()):
        found[peer == rank] = column
    return found


def end_waits(calls: Sequence[Calls], timeline: Timeline, messages: Sequence[Sides]) -> list[Calls]:
    """Return calls with ends when ranks went on after waits in which nothing else ended.

    A rank that waits in a span for a call in flight goes on when the call is over. Where another thread
    noted that later, as it got no processor, the end of the wait tells it. Of several calls that were
    noted later the first one ended the wait.
    """
    sides = [call.sides for call in calls]
    if not sides:
        return []
    worker, end, stops = (
        np.concatenate([getattr(side, name) for side in sides])
        for name in ("worker", "end", "stops")
    )
    all_arrived = [np.maximum(call.start, call.on_wire[:, None]).ravel() for call in calls]
    is_rooted = np.repeat([call.is_rooted for call in calls], [len(side.end) for side in sides])
    # All positions are on the line of the workers.
    arrived, noted = (
        timeline.locate(worker, np.concatenate(all_arrived)),
        timeline.locate(worker, end),
    )
    message_ends = [timeline.locate(side.worker, side.end) for side in messages]
    known_ends = np.sort(np.concatenate([noted, *message_ends]))
    wait_begins, wait_ends = timeline.wait_edges[::2], timeline.wait_edges[1::2]
    ended_before, ended_after = (
        np.searchsorted(known_ends, positions, side="right")
        for positions in (wait_begins, timeline.blocked_until(wait_ends))
    )
    is_explained = ended_after > ended_before
    wait = np.searchsorted(wait_ends, noted) - 1
    is_late = (wait >= 0) & ~stops & ~is_rooted
    is_late[is_late] &= ~is_explained[wait[is_late]]
    is_late[is_late] &= wait_ends[wait[is_late]] > arrived[is_late]
    late = np.flatnonzero(is_late)
    by_wait = late[np.lexsort((noted[late], wait[late]))]
    first_noted = by_wait[np.diff(wait[by_wait], prepend=-1) != 0]
    end[first_noted] -= noted[first_noted] - wait_ends[wait[first_noted]]
    ends = np.split(end, np.cumsum([len(side.end) for side in sides])[:-1])
    return [call.end_earlier(of_call) for call, of_call in zip(calls, ends, strict=True)]
