"""Cuts one thread's time into touching pieces, each with exactly one category, and keeps them.

All begins and ends of interest are sorted into boundaries; between two neighbours nothing changes.
Spans get levels by how many others are open when they begin, and within a level the latest begun
counts: so the deepest active level is the innermost span, and overlaps that should not exist still give
each nanosecond to one span.

Where a device did the work, its time counts first: the thread only queued it. Then comes the thread's
other work, then communication, and last the queueing, which matters only while the device has nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from tracelens.arrays import Array

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Indices, Int8s, Int16s, Int32s, Ints


_Code: TypeAlias = Array | int

# Own work first (by kind), then what the rank waited for, then what is left.
CATEGORIES: Final = (
    "data",
    "forward",
    "backprop",
    "update",
    "checkpoint",
    "gc",
    "user",
    "wait",  # in a collective (or blocked on one in flight) that not all ranks have entered
    "ps_queue",  # a request is in a parameter server's queue, or waits for later pushes
    "transfer",  # communication that all have entered and nothing hides
    "idle",  # no work, with a recorded cause
    "unknown",  # nothing was recorded
)
COMPUTE_CATEGORIES: Final = CATEGORIES[:7]
USER: Final = CATEGORIES.index("user")
WAIT: Final = CATEGORIES.index("wait")
PS_QUEUE: Final = CATEGORIES.index("ps_queue")
TRANSFER: Final = CATEGORIES.index("transfer")
IDLE: Final = CATEGORIES.index("idle")
UNKNOWN: Final = CATEGORIES.index("unknown")
# What a span may say beside a category: communication of a kind yet to be found out; and blocking
# on something, which is that something's category, or a wait if nothing else is recorded.
COMMUNICATION: Final = 100
BLOCKED: Final = 101
QUEUED: Final = 200  # more than the category of a span that only queues work for a device
NOTHING: Final = -1
_HALF_BITS: Final = 31
_HALF: Final = (1 << _HALF_BITS) - 1


@dataclass(frozen=True)
class Intervals:
    """Begins and ends."""

    start: Ints
    end: Ints

    def within(self, first: int, last: int) -> Intervals:
        """Cut to a window; what is outside or has no length is left out."""
        start, end = np.maximum(self.start, first), np.minimum(self.end, last)
        lasts = start < end
        return Intervals(start, end) if lasts.all() else Intervals(start[lasts], end[lasts])


@dataclass(frozen=True)
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


def _no_spans() -> Spans:
    none = np.empty(0, np.int64)
    return Spans(none, none, none, none)


@dataclass(frozen=True)
class Surroundings:
    """Concurrent activity of the rank: waits, shard queues, communication, other causes.

    `device` is the own work that was timed on a device.
    """

    wait: Intervals
    queue: Intervals
    flying: Intervals
    cause: Intervals
    device: Spans = field(default_factory=_no_spans)

    def within(self, first: int, last: int) -> Surroundings:
        """Cut to a window."""
        parts = (self.wait, self.queue, self.flying, self.cause)
        wait, queue, flying, cause = (part.within(first, last) for part in parts)
        return Surroundings(wait, queue, flying, cause, self.device.within(first, last))


@dataclass(frozen=True)
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
        spent[window[gaps], UNKNOWN] += self.spent[gaps].sum(axis=1)
        return Pieces(
            bounds=self.bounds,
            step=window[self.step],
            category=np.where(inside, self.category, np.int8(UNKNOWN)),
            name=np.where(inside, self.name, np.int32(NOTHING)),
            spent=spent,
            hidden=self.hidden[kept],
        )


def partition(spans: Spans, around: Surroundings, windows: Ints) -> Pieces:
    """Cut the time from ``windows[0]`` to ``windows[-1]``; `windows` are the bounds of the steps."""
    first, last = int(windows[0]), int(windows[-1])
    spans, around = spans.within(first, last), around.within(first, last)
    sets = (around.wait, around.queue, around.flying, around.cause, around.device)
    bounds, places = _boundaries(windows, spans, *sets)
    of_steps, of_spans, *of_sets, of_device = places
    wait, queue, flying, cause = (_covered(len(bounds), part) for part in of_sets)
    code, user, name = _innermost(len(bounds), spans, of_spans, wait | queue | flying)
    split = _either(wait, WAIT, _either(queue, PS_QUEUE, TRANSFER))
    unrecorded = _either(user, USER, _either(flying, split, _either(cause, IDLE, UNKNOWN)))
    category = _either(code == NOTHING, unrecorded, _either(code == COMMUNICATION, split, code))
    queued = code >= QUEUED
    if queued.any():
        category = _either(queued, _either(flying, split, code - QUEUED), category)
        name = np.where(queued & flying, NOTHING, name)
    if len(around.device.start):
        works, works_for_user, work = _innermost(len(bounds), around.device, of_device, flying)
        works = _either((works == NOTHING) & works_for_user, USER, works)
        category = _either(works != NOTHING, works, category)
        name = np.where(works != NOTHING, work, name)
    count = len(windows) - 1
    step = np.repeat(np.arange(count, dtype=np.int32), np.diff(of_steps))
    beside = np.flatnonzero(flying & (category <= USER))
    hidden = _sums(step[beside], bounds[beside + 1] - bounds[beside], count)
    kept = np.flatnonzero(_differs(step, category, name))
    step, category = step[kept], category[kept]
    bounds = np.append(bounds[kept], bounds[-1])
    spent = _sums(step * len(CATEGORIES) + category, np.diff(bounds), count * len(CATEGORIES))
    return Pieces(
        bounds=bounds,
        step=step,
        category=category.astype(np.int8),
        name=name[kept],
        spent=spent.reshape(count, len(CATEGORIES)),
        hidden=hidden,
    )


def _boundaries(windows: Ints, *sets: Spans | Intervals) -> tuple[Ints, list[Array]]:
    """Return all moments at which anything changes, and where among them each part's edges are.

    Of the windows that is one array; of each set [0] where it begins, [1] where it ends.
    """
    edges = np.concatenate([windows, *(edge for part in sets for edge in (part.start, part.end))])
    order = np.argsort(edges, kind="stable")  # made of sorted runs, which that merges
    ordered = edges[order]
    new = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    places = np.empty(len(edges), np.int32)
    places[order] = np.cumsum(new, dtype=np.int32) - 1
    found: list[Array] = [places[: len(windows)]]
    begin = len(windows)
    for part in sets:
        count = len(part.start)
        found.append(places[begin : begin + 2 * count].reshape(2, count))
        begin += 2 * count
    return ordered[new], found


def _sums(where: Array, values: Ints, size: int) -> Ints:
    """Add values up by place, exactly: as two halves, of which floating point loses nothing."""
    low = np.bincount(where, values & _HALF, minlength=size)
    if len(values) and int(values.max()) > _HALF:
        high = np.bincount(where, values >> _HALF_BITS, minlength=size)
        return low.astype(np.int64) + (high.astype(np.int64) << _HALF_BITS)
    return np.asarray(low.astype(np.int64))


def _differs(*columns: Array) -> Flags:
    """Return which rows differ from the one before."""
    new = np.ones(len(columns[0]), np.bool_)
    new[1:] = False
    for values in columns:
        new[1:] |= values[1:] != values[:-1]
    return new


def _either(where: Flags, this: _Code, that: _Code) -> Int16s:
    """Choose codes, in the smallest type that holds them."""
    small = [np.asarray(code, np.int16) for code in (this, that)]
    return np.where(where, *small)


def _covered(bounds: int, places: Array) -> Flags:
    """Return for each piece whether any interval covers it; `places` are those of begins and ends."""
    if not places.shape[1]:
        return np.zeros(bounds - 1, np.bool_)
    opened, closed = (np.bincount(part, minlength=bounds) for part in places)
    return np.asarray(np.cumsum(opened - closed)[:-1] > 0)


def _innermost(
    bounds: int, spans: Spans, places: Array, busy: Flags
) -> tuple[Int16s, Flags, Int32s]:
    """Return for each piece the innermost phase's code, whether user code is open, and the name."""
    size = bounds - 1
    begin, end = places
    meaning = np.append(_resolved(spans, begin, end, busy), np.int16(NOTHING))
    is_user, user = meaning == USER, np.zeros(size, np.bool_)
    innermost = np.full(size, -1, np.int32)
    of_phase = innermost.copy() if is_user.any() else innermost
    over = np.cumsum(np.bincount(end, minlength=bounds))  # spans that have ended by each boundary
    levels = np.arange(len(begin)) - over[begin]
    for level in range(int(levels.max(initial=-1)) + 1):
        active = _laid_out(np.flatnonzero(levels == level), begin, end, size)
        covered = active >= 0
        np.copyto(innermost, active, where=covered)
        if of_phase is not innermost:
            of_user = is_user[active]
            user |= of_user
            np.copyto(of_phase, active, where=covered & ~of_user)
    name = np.append(spans.name, NOTHING).astype(np.int32)
    return meaning[of_phase], user, name[innermost]


def _laid_out(spans: Indices, begin: Array, end: Array, size: int) -> Int32s:
    """Return for each piece which of some spans is active, the latest begun one; -1 where none is."""
    first = begin[spans]
    over = np.minimum(end[spans], np.append(first[1:], size))
    label, count = np.full(2 * len(spans) + 1, -1, np.int32), np.empty(2 * len(spans) + 1, np.int32)
    label[1::2], count[1::2] = spans, over - first
    count[:-1:2] = first - np.append(0, over[:-1])
    count[-1] = size - over[-1]
    return np.repeat(label, count)


def _resolved(spans: Spans, begin: Array, end: Array, busy: Flags) -> Int16s:
    """Turn blocking spans into communication if any is recorded inside them, else into waiting."""
    meaning = spans.code.astype(np.int16)
    blocked = np.flatnonzero(meaning == BLOCKED)
    if len(blocked):
        before = np.concatenate([[0], np.cumsum(busy)])
        alone = before[end[blocked]] == before[begin[blocked]]
        meaning[blocked] = np.where(alone, WAIT, COMMUNICATION)
    return meaning
