"""Cuts one thread's time into touching pieces, each with exactly one category, and keeps them.

Where a device did the work, its time counts first: the thread only queued it. Then comes the thread's
other work, then communication, and last the queueing, which matters only while the device has nothing.
The innermost span counts; how that is found out is in `sweep`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np

from tracelens.accounting.categories import BLOCKED, COMMUNICATION, NOTHING, UNINSTRUMENTED, WAIT
from tracelens.accounting.sweep import Covers, Edges, Layers, cut

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.accounting.sweep import Cut
    from tracelens.arrays import Array, Indices, Int8s, Int32s, Ints


@dataclass(frozen=True, eq=False)
class Intervals:
    """Begins and ends."""

    start: Ints
    end: Ints

    def __reduce__(self) -> tuple[Callable[..., Intervals], tuple[int, Array, Array]]:
        """Send differences and lengths, of which 32 bits mostly are all that is needed."""
        first = int(self.start[0]) if len(self.start) else 0
        later = np.diff(self.start, prepend=first)
        return self._of_lengths, (first, _small(later), _small(self.end - self.start))

    @classmethod
    def _of_lengths(cls, first: int, later: Array, lengths: Array) -> Self:
        start = np.cumsum(later, dtype=np.int64) + first
        return cls(start, start + lengths)

    def within(self, first: int, last: int) -> Intervals:
        """Cut to a window; what is outside or has no length is left out."""
        start, end = np.maximum(self.start, first), np.minimum(self.end, last)
        lasts = start < end
        return Intervals(start, end) if lasts.all() else Intervals(start[lasts], end[lasts])

    def joined_with(self, others: Intervals) -> Intervals:
        """Return these and others."""
        if not len(self.start):
            return others
        start, end = (self.start, others.start), (self.end, others.end)
        return Intervals(np.concatenate(start), np.concatenate(end))

    def edges(self) -> Edges:
        """Return begins and ends, each in order."""
        return Edges(np.sort(self.start, kind="stable"), np.sort(self.end, kind="stable"))


def _small(values: Ints) -> Array:
    limits = np.iinfo(np.int32)
    fits = values.min(initial=0) >= limits.min and values.max(initial=0) <= limits.max
    return values.astype(np.int32) if fits else values


@dataclass(frozen=True, eq=False)
class Spans:
    """A thread's spans; `code` says what each means, `name` is any number that stands for its name."""

    start: Ints
    end: Ints
    code: Ints
    name: Ints

    def within(self, first: int, last: int) -> Spans:
        """Cut to a window and sort: outer spans before the inner ones."""
        start, end = np.maximum(self.start, first), np.minimum(self.end, last)
        found = Spans(start, end, self.code, self.name)
        lasts = start < end
        if not lasts.all():
            found = found.taken(np.flatnonzero(lasts))
        later, longer = np.diff(found.start), np.diff(found.end)
        if not np.all((later > 0) | ((later == 0) & (longer <= 0))):
            found = found.taken(np.lexsort((-found.end, found.start)))
        return found

    def taken(self, rows: Indices) -> Spans:
        """Return some of them."""
        return Spans(self.start[rows], self.end[rows], self.code[rows], self.name[rows])

    def layers(self, *busy: Edges) -> Layers:
        """Make blocking spans communication if any is recorded in them (`busy`), else waiting."""
        code = self.code.astype(np.int16)
        blocked = np.flatnonzero(code == BLOCKED)
        if len(blocked):
            start, end = self.start[blocked], self.end[blocked]
            begun = sum(np.searchsorted(part.begins, end) for part in busy)
            ended = sum(np.searchsorted(part.ends, start, "right") for part in busy)
            code[blocked] = np.where(begun == ended, WAIT, COMMUNICATION)
        return Layers(self.start, self.end, code, self.name.astype(np.int32))


def _no_spans() -> Spans:
    none = np.empty(0, np.int64)
    return Spans(none, none, none, none)


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Concurrent activity of the rank: waits, shard queues, communication, other causes.

    `stopped`: when communication in flight stops the rank where no span covers its time. `device` is the
    own work that was timed on a device.
    """

    wait: Intervals
    queue: Intervals
    flying: Intervals
    stopped: Intervals
    cause: Intervals
    device: Spans = field(default_factory=_no_spans)

    def within(self, first: int, last: int) -> Surroundings:
        """Cut to a window."""
        parts = (self.wait, self.queue, self.flying, self.stopped, self.cause)
        wait, queue, flying, stopped, cause = (part.within(first, last) for part in parts)
        device = self.device.within(first, last)
        return Surroundings(wait, queue, flying, stopped, cause, device)


@dataclass(frozen=True, eq=False)
class Pieces:
    """Touching pieces of time: boundaries (one more than pieces), and what each piece is."""

    bounds: Ints
    step: Int32s  # index of the step window
    category: Int8s
    name: Int32s
    spent: Ints  # nanoseconds, [step window, category]
    hidden: Ints  # nanoseconds of communication under own work, by step window

    def without(self, gaps: Ints) -> Pieces:
        """Return them with some windows as time of the ones before in which nothing was recorded."""
        if not len(gaps):
            return self
        kept = np.ones(len(self.hidden), np.bool_)
        kept[gaps] = False
        window = np.cumsum(kept, dtype=np.int32) - 1
        spent, inside = self.spent[kept], kept[self.step]
        spent[window[gaps], UNINSTRUMENTED] += self.spent[gaps].sum(axis=1)
        return Pieces(
            bounds=self.bounds,
            step=window[self.step],
            category=np.where(inside, self.category, np.int8(UNINSTRUMENTED)),
            name=np.where(inside, self.name, np.int32(NOTHING)),
            spent=spent,
            hidden=self.hidden[kept],
        )


def partition(
    spans: Spans,
    around: Surroundings,
    windows: Ints,
    sweep: Callable[..., Cut] = cut,
) -> Pieces:
    """Cut the time from ``windows[0]`` to ``windows[-1]``; `windows` are the bounds of the steps.

    `sweep` makes the cuts: in C where that is built, or `sweep.cut_in_numpy`.
    """
    first, last = int(windows[0]), int(windows[-1])
    spans, around = spans.within(first, last), around.within(first, last)
    parts = (around.wait, around.queue, around.flying, around.stopped, around.cause)
    covers = Covers(*(part.edges() for part in parts))
    busy = (covers.wait, covers.queue, covers.flying)
    layers = spans.layers(*busy), covers, around.device.layers(covers.flying)
    return Pieces(**sweep(windows, *layers)._asdict())
