"""Cuts one thread's time into touching pieces, each with exactly one category.

All begins and ends of interest are sorted into boundaries; between two neighbours nothing changes.
Spans get levels by how many others are open when they begin, and within a level the latest begun
counts: so the deepest active level is the innermost span, and overlaps that should not exist still
give each nanosecond to one span.

Where a device did the work, its time counts first: the thread only queued it. Then comes the thread's
other work, then communication, and last the queueing, which matters only while the device has nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]

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
    "ps_queue",  # a request stands in a parameter server's queue, or waits for later pushes
    "transfer",  # communication that all have entered and nothing hides
    "idle",  # no work, with a recorded cause
    "unknown",  # nothing was recorded
)
OWN_CATEGORIES: Final = CATEGORIES[:7]
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


@dataclass(frozen=True)
class Intervals:
    """Begins and ends."""

    start: Times
    end: Times

    def within(self, first: int, last: int) -> Intervals:
        """Cut to a window; what lies outside or has no length is left out."""
        start, end = np.maximum(self.start, first), np.minimum(self.end, last)
        kept = start < end
        return Intervals(start[kept], end[kept])


@dataclass(frozen=True)
class Spans:
    """A thread's spans; `code` says what each means, `name` is any number that stands for its name."""

    start: Times
    end: Times
    code: npt.NDArray[np.int64]
    name: npt.NDArray[np.int64]

    def within(self, first: int, last: int) -> Spans:
        """Cut to a window and sort: outer spans before the inner ones."""
        start, end = np.maximum(self.start, first), np.minimum(self.end, last)
        kept = np.flatnonzero(start < end)
        order = kept[np.lexsort((-end[kept], start[kept]))]
        return Spans(start[order], end[order], self.code[order], self.name[order])


def _no_spans() -> Spans:
    none = np.empty(0, np.int64)
    return Spans(none, none, none, none)


@dataclass(frozen=True)
class Surroundings:
    """What else of the rank goes on: who it waits for, shard queues, communication, other causes.

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

    bounds: Times
    step: npt.NDArray[np.int64]  # index of the step window
    category: Codes
    name: npt.NDArray[np.int64]
    hidden: Times  # nanoseconds of communication under own work, by step window


def partition(spans: Spans, around: Surroundings, windows: Times) -> Pieces:
    """Cut the time from ``windows[0]`` to ``windows[-1]``; `windows` are the bounds of the steps."""
    first, last = int(windows[0]), int(windows[-1])
    spans, around = spans.within(first, last), around.within(first, last)
    sets = (spans, around.wait, around.queue, around.flying, around.cause)
    ends = [edge for part in (*sets, around.device) for edge in (part.start, part.end)]
    bounds = np.sort(np.concatenate([windows, *ends]))
    bounds = bounds[np.diff(bounds, prepend=first - 1) > 0]
    wait, queue, flying, cause = (_covered(bounds, part) for part in sets[1:])
    code, user, name = _innermost(bounds, spans, wait | queue | flying)
    works, works_for_user, work = _innermost(bounds, around.device, flying)
    works = np.where((works == NOTHING) & works_for_user, USER, works)
    split = np.select([wait, queue], [WAIT, PS_QUEUE], TRANSFER)
    unrecorded = np.select([user, flying, cause], [USER, split, IDLE], UNKNOWN)
    queued = np.where(flying, split, code - QUEUED)
    category = np.select(
        [works != NOTHING, code == NOTHING, code == COMMUNICATION, code >= QUEUED],
        [works, unrecorded, split, queued],
        code,
    ).astype(np.int8)
    name = np.where((code >= QUEUED) & flying, NOTHING, name)
    name = np.where(works != NOTHING, work, name)
    step = np.searchsorted(windows[:-1], bounds[:-1], side="right") - 1
    lengths = np.diff(bounds) * (flying & (category <= USER))
    hidden = np.bincount(step, lengths, len(windows) - 1).astype(np.int64)
    return _merged(Pieces(bounds, step, category, name, hidden))


def _covered(bounds: Times, part: Intervals) -> Flags:
    """Say for each piece whether any interval covers it."""
    size = len(bounds)
    opened = np.bincount(np.searchsorted(bounds, part.start), minlength=size)
    closed = np.bincount(np.searchsorted(bounds, part.end), minlength=size)
    return np.asarray(np.cumsum(opened - closed)[:-1] > 0)


def _innermost(
    bounds: Times, spans: Spans, busy: Flags
) -> tuple[npt.NDArray[np.int64], Flags, npt.NDArray[np.int64]]:
    """Return for each piece the innermost phase's code, whether user code is open, and the name."""
    size = len(bounds) - 1
    begin = np.searchsorted(bounds, spans.start)
    meaning = _resolved(bounds, spans, begin, busy)
    code, name = np.full(size, NOTHING), np.full(size, NOTHING)
    user = np.zeros(size, np.bool_)
    levels = np.arange(len(begin)) - np.searchsorted(np.sort(spans.end), spans.start, "right")
    for level in range(int(levels.max(initial=-1)) + 1):
        chosen = np.flatnonzero(levels == level)
        latest = np.full(size, -1)
        latest[begin[chosen]] = chosen
        latest = np.maximum.accumulate(latest)
        active = np.flatnonzero((latest >= 0) & (spans.end[latest] > bounds[:-1]))
        span = latest[active]
        name[active] = spans.name[span]
        is_user = meaning[span] == USER
        user[active[is_user]] = True
        code[active[~is_user]] = meaning[span[~is_user]]
    return code, user, name


def _resolved(
    bounds: Times, spans: Spans, begin: npt.NDArray[np.intp], busy: Flags
) -> npt.NDArray[np.int64]:
    """Turn blocking spans into communication if any is recorded beneath them, else into waiting."""
    before = np.concatenate([[0], np.cumsum(busy)])
    end = np.searchsorted(bounds, spans.end)
    alone = before[end] == before[begin]
    blocked = spans.code == BLOCKED
    return np.select([blocked & alone, blocked], [WAIT, COMMUNICATION], spans.code)


def _merged(pieces: Pieces) -> Pieces:
    """Join neighbours that do not differ."""
    new = np.ones(len(pieces.step), np.bool_)
    for values in (pieces.step, pieces.category, pieces.name):
        new[1:] = new[1:] & (values[1:] == values[:-1])
    new[1:] = ~new[1:]
    kept = np.flatnonzero(new)
    bounds = np.append(pieces.bounds[kept], pieces.bounds[-1])
    return Pieces(
        bounds, pieces.step[kept], pieces.category[kept], pieces.name[kept], pieces.hidden
    )
