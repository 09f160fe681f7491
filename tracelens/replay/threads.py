"""Training threads as moments, and the work between them.

A moment is a begin or an end of what a thread exchanges with others, or the end of a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from tracelens.accounting.categories import CATEGORIES
from tracelens.caching import cached_property
from tracelens.model.columns import FOREVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from tracelens.accounting.pieces import WorkerPieces
    from tracelens.arrays import Flags, Floats, Indices, Ints

    Edges = tuple[Ints, Ints, Ints]  # sources, targets and lags

__all__ = [
    "IS_BLOCKED",
    "Blocked",
    "Numbers",
    "Sides",
    "Thread",
    "first_updates",
    "rows_by_worker",
    "rows_of",
    "threads_of",
    "waits_since",
]

# share of a blocked stretch: what another thread noted so soon after its end ended it [chosen]
MAX_DELAY_OF_NOTICE: Final = 0.05
# share of the time since the end: a thread that waited no longer looked only when all
# was over [chosen]
MAX_WAIT_IF_ALREADY_OVER: Final = 0.05
IS_BLOCKED: Final = np.isin(CATEGORIES, ("wait", "ps_queue", "transfer"))


@dataclass(frozen=True, eq=False)
class Sides:
    """Messages on one side, or ranks in collectives: of which worker, from when until when.

    `stops` says whether its training thread was in it.
    """

    worker: Ints
    begin: Ints
    end: Ints
    stops: Flags

    def taken(self, rows: Indices | Flags) -> Sides:
        """Return some of them."""
        return Sides(self.worker[rows], self.begin[rows], self.end[rows], self.stops[rows])

    def noticed(self, blocked: Blocked) -> Sides:
        """Return them with ends in flight when training threads noticed them."""
        end = blocked.noticed(self.worker, self.begin, self.end)
        return replace(self, end=np.where(self.stops, self.end, end))

    def within(self, first: Ints, last: Ints) -> Flags:
        """Return which lie in the steps of their worker."""
        return (self.begin >= first[self.worker]) & (self.end <= last[self.worker])


@dataclass(frozen=True, eq=False)
class Thread:
    """A training thread: its moments, and what lies between two of them.

    `stopped` says between which moments it was in a message or collective, `arrives` at which of them
    something in flight was over for which it was blocked. `steps` have `ends`.
    """

    pieces: WorkerPieces
    moments: Ints
    stopped: Flags
    arrives: Flags
    steps: Ints
    ends: Ints

    @classmethod
    def of(cls, pieces: WorkerPieces, steps: pl.DataFrame, sides: Sequence[Sides]) -> Self:
        """Find the moments among steps and what it exchanged."""
        begin, end, stops = (
            np.concatenate([getattr(side, name) for side in sides])
            for name in ("begin", "end", "stops")
        )
        arrived = end[~stops & (waits_since(pieces, end) < end)]
        ends = steps["end_ns"].to_numpy()
        first = steps["start_ns"].to_numpy()[:1]
        moments = np.unique(np.concatenate([first, ends, begin, end[stops], arrived]))
        inside = np.zeros(len(moments), np.int64)
        np.add.at(inside, np.searchsorted(moments, begin[stops]), 1)
        np.subtract.at(inside, np.searchsorted(moments, end[stops]), 1)
        return cls(
            pieces=pieces,
            moments=moments,
            stopped=np.cumsum(inside)[:-1] > 0,
            arrives=np.isin(moments, arrived),
            steps=steps["step"].to_numpy().astype(np.int64),
            ends=ends,
        )

    def lags(self, caused: Flags) -> Ints:
        """Return how long after one moment the next one comes, if it follows nothing else.

        What it was blocked before one that is `caused`, [moment], it is as long as that takes.
        """
        passed = self.spent(~IS_BLOCKED)
        lags = np.where((self.arrives & caused)[1:], passed, np.diff(self.moments))
        return np.where(self.stopped, 0, lags).astype(np.int64)

    @cached_property
    def needs(self) -> Ints:
        """Return from when on it needs what was in flight: see `Numbers.needed`."""
        updates = first_updates(self.pieces)
        known = updates[np.isin(updates, self.moments)]
        return np.unique(np.concatenate([self.moments[self.arrives], self.ends, known]))

    @property
    def passed(self) -> Floats:
        """How long it worked between the moments: nothing while it is in a message or collective."""
        return np.where(self.stopped, 0.0, self.spent(~IS_BLOCKED))

    def spent(self, counts: Flags) -> Floats:
        """Return how much of some categories lies between the moments."""
        return np.diff(self.pieces.spent_before(counts, self.moments))


def threads_of(
    pieces: Sequence[WorkerPieces], steps: Sequence[pl.DataFrame], sides: Sequence[Sides]
) -> list[Thread]:
    """Return the thread of each worker, from its pieces, its steps and its part of all sides."""
    rows = [rows_by_worker(side.worker, len(pieces)) for side in sides]
    return [
        Thread.of(
            one,
            steps[worker],
            [side.taken(mine[worker]) for side, mine in zip(sides, rows, strict=True)],
        )
        for worker, one in enumerate(pieces)
    ]


class Blocked:
    """When each worker's training thread was blocked: begins and ends of its stretches."""

    def __init__(self, pieces: Sequence[WorkerPieces]) -> None:
        self.stretches = [_stretches(one) for one in pieces]

    def noticed(self, worker: Ints, begun: Ints, end: Ints) -> Ints:
        """Return when threads noticed that something was over, which another thread noted later.

        That is the end of the stretch in which they were blocked until just before, as seen from its
        length; else it is when it was noted.
        """
        found = end.copy()
        each = rows_by_worker(worker, len(self.stretches))
        for (begin, over), rows in zip(self.stretches, each, strict=True):
            if not len(rows) or not len(over):
                continue
            at = np.searchsorted(over, end[rows]) - 1
            late = end[rows] - over[at]
            length = over[at] - begin[at]
            inside = (at >= 0) & (late <= MAX_DELAY_OF_NOTICE * length)
            next_begin = np.append(begin, FOREVER)[at + 1]
            inside &= (end[rows] <= next_begin) & (over[at] > begun[rows])
            found[rows[inside]] = over[at[inside]]
        return found

    def looked_late(self, worker: Ints, over: Ints, end: Ints) -> Flags:
        """Return of what was over before threads waited for it, though they saw it when they did.

        That is seen from how short they had waited by its `end`, beside how long it was `over`.
        """
        found = np.zeros(len(worker), np.bool_)
        each = rows_by_worker(worker, len(self.stretches))
        for (begin, until), rows in zip(self.stretches, each, strict=True):
            if not len(rows) or not len(begin):
                continue
            at = np.searchsorted(begin, end[rows]) - 1
            waited = end[rows] - begin[at]
            inside = (at >= 0) & (end[rows] <= until[at]) & (begin[at] > over[rows])
            found[rows] = inside & (waited <= MAX_WAIT_IF_ALREADY_OVER * (end - over)[rows])
        return found


def _stretches(pieces: WorkerPieces) -> tuple[Ints, Ints]:
    inside = np.concatenate([[False], IS_BLOCKED[pieces.category], [False]])
    edges = pieces.bounds[np.flatnonzero(inside[1:] != inside[:-1])]
    return edges[::2], edges[1::2]


def rows_by_worker(worker: Ints, workers: int) -> list[Indices]:
    """Return the rows of each worker, in order."""
    small = worker.astype(np.uint16) if workers <= 1 << 16 else worker
    order = np.argsort(small, kind="stable")
    bounds = np.searchsorted(small[order], np.arange(workers + 1))
    return np.split(order, bounds[1:-1])


def first_updates(pieces: WorkerPieces) -> Ints:
    """Return when a thread began to update weights, once a step."""
    rows = np.flatnonzero(pieces.category == CATEGORIES.index("update"))
    _, first = np.unique(pieces.step[rows], return_index=True)
    return pieces.bounds[rows[first]]


def waits_since(pieces: WorkerPieces, moments: Ints) -> Ints:
    """Return since when a thread was blocked until some moments; the moment itself where it was not."""
    inside = np.concatenate([[False], IS_BLOCKED[pieces.category], [False]])
    edges = pieces.bounds[np.flatnonzero(inside[1:] != inside[:-1])]
    number = np.searchsorted(edges, moments)  # odd after the begin of a stretch, up to its end
    return np.where(number % 2 == 1, np.append(edges, 0)[number - 1], moments)


def rows_of(thread: Thread, steps: Ints) -> Ints:
    """Return of which step what lies between two moments is, as a row of `steps`; -1 of none."""
    window = np.searchsorted(thread.ends, thread.moments[:-1], side="right")
    row = np.searchsorted(steps, thread.steps)
    known = np.append(steps, -1)[row] == thread.steps
    return np.where(known, row, -1)[np.minimum(window, len(row) - 1)]


class Numbers:
    """Numbers the moments of all threads, one thread after the other."""

    def __init__(self, threads: Sequence[Thread]) -> None:
        self._threads = threads
        self._first = np.cumsum([0, *(len(thread.moments) for thread in threads)])
        self.count = int(self._first[-1])

    def of(self, worker: Ints, moment: Ints) -> Ints:
        """Return the number of a moment of each of some workers; -1 where it is none of its thread."""
        found = np.full(len(worker), -1, np.int64)
        each = rows_by_worker(worker, len(self._threads))
        for number, (thread, rows) in enumerate(zip(self._threads, each, strict=True)):
            at = np.minimum(np.searchsorted(thread.moments, moment[rows]), len(thread.moments) - 1)
            there = thread.moments[at] == moment[rows]
            found[rows] = np.where(there, self._first[number] + at, -1)
        return found

    def needed(self, worker: Ints, moment: Ints) -> Ints:
        """Return the number of the moment from which on a thread needs what was over before.

        That is when it next was blocked by something in flight, or began to update weights, or ended
        the step; -1 where no step follows.
        """
        found = np.full(len(worker), -1, np.int64)
        each = rows_by_worker(worker, len(self._threads))
        for number, (thread, rows) in enumerate(zip(self._threads, each, strict=True)):
            at = np.searchsorted(thread.needs, moment[rows])
            known = at < len(thread.needs)
            place = np.searchsorted(thread.moments, thread.needs[at[known]])
            found[rows[known]] = self._first[number] + place
        return found

    def _flags(self, numbers: Ints) -> list[Flags]:
        """Return which moments of each thread are among some."""
        flags = np.zeros(self.count, np.bool_)
        flags[numbers[numbers < self.count]] = True
        return np.split(flags, self._first[1:-1])

    def in_order(self, caused: Ints) -> Edges:
        """Return that each moment of a thread follows the one before it; `caused` follow others, too."""
        source = [
            np.arange(first, first + len(thread.moments) - 1)
            for first, thread in zip(self._first.tolist(), self._threads, strict=False)
        ]
        lags = [
            thread.lags(flags)
            for thread, flags in zip(self._threads, self._flags(caused), strict=True)
        ]
        return np.concatenate(source), np.concatenate(source) + 1, np.concatenate(lags)

    def ends(self, steps: Ints) -> Ints:
        """Return the ends of some steps, [step, worker], -1 where a worker lacks one."""
        found = np.full((len(steps), len(self._threads)), -1, np.int64)
        for number, thread in enumerate(self._threads):
            row = np.searchsorted(steps, thread.steps)
            known = np.append(steps, -1)[row] == thread.steps
            at = self._first[number] + np.searchsorted(thread.moments, thread.ends)
            found[row[known], number] = at[known]
        return found
