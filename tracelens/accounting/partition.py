"""Cuts one thread's time into touching pieces, each with exactly one category, and keeps them.

All begins and ends of interest are sorted into boundaries; between two neighbours nothing changes.
Spans get levels by how many others are open when they begin, and within a level the latest begun
counts: so the deepest active level is the innermost span, and overlaps that should not exist still give
each nanosecond to one span.

Where a device did the work, its time counts first: the thread only queued it. Then comes the thread's
other work, then communication, and last the queueing, which matters only while the device has nothing.

The pieces of all threads are kept as plain arrays (`Segments`); rows of a frame, twice as large, are
made when asked for, as most analyses only need sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import polars as pl

from tracelens.arrays import Array

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Floats, Indices, Int8s, Int16s, Int32s, Ints


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
# The training thread's time, cut into touching, non-overlapping pieces.
SEGMENT_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "category": pl.Enum(CATEGORIES),
    "name": pl.Categorical(),  # innermost recorded span, null where none
}


@dataclass(frozen=True)
class Intervals:
    """Begins and ends."""

    start: Ints
    end: Ints

    def within(self, first: int, last: int) -> Intervals:
        """Cut to a window; what is outside or has no length is left out."""
        start, end = np.maximum(self.start, first), np.minimum(self.end, last)
        kept = start < end
        return Intervals(start[kept], end[kept])


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
        kept = np.flatnonzero(start < end)
        later, longer = np.diff(start[kept]), np.diff(end[kept])
        if not np.all((later > 0) | ((later == 0) & (longer <= 0))):
            kept = kept[np.lexsort((-end[kept], start[kept]))]
        return Spans(start[kept], end[kept], self.code[kept], self.name[kept])


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


def partition(spans: Spans, around: Surroundings, windows: Ints) -> Pieces:
    """Cut the time from ``windows[0]`` to ``windows[-1]``; `windows` are the bounds of the steps."""
    first, last = int(windows[0]), int(windows[-1])
    spans, around = spans.within(first, last), around.within(first, last)
    sets = (spans, around.wait, around.queue, around.flying, around.cause)
    ends = [edge for part in (*sets, around.device) for edge in (part.start, part.end)]
    bounds = np.sort(np.concatenate([windows, *ends]))
    bounds = bounds[np.diff(bounds, prepend=first - 1) > 0]
    wait, queue, flying, cause = (_covered(bounds, part) for part in sets[1:])
    code, user, name = _innermost(bounds, spans, wait | queue | flying)
    split = _either(wait, WAIT, _either(queue, PS_QUEUE, TRANSFER))
    unrecorded = _either(user, USER, _either(flying, split, _either(cause, IDLE, UNKNOWN)))
    category = _either(code == NOTHING, unrecorded, _either(code == COMMUNICATION, split, code))
    queued = code >= QUEUED
    if queued.any():
        category = _either(queued, _either(flying, split, code - QUEUED), category)
        name = np.where(queued & flying, NOTHING, name)
    if len(around.device.start):
        works, works_for_user, work = _innermost(bounds, around.device, flying)
        works = _either((works == NOTHING) & works_for_user, USER, works)
        category = _either(works != NOTHING, works, category)
        name = np.where(works != NOTHING, work, name)
    step = np.repeat(np.arange(len(windows) - 1), np.diff(np.searchsorted(bounds, windows)))
    lengths, count = np.diff(bounds), len(windows) - 1
    spent = _sums(step * len(CATEGORIES) + category, lengths, count * len(CATEGORIES))
    beside = np.flatnonzero(flying & (category <= USER))
    kept = np.flatnonzero(_differs(step, category, name))
    return Pieces(
        bounds=np.append(bounds[kept], bounds[-1]),
        step=step[kept].astype(np.int32),
        category=category[kept].astype(np.int8),
        name=name[kept],
        spent=spent.reshape(count, len(CATEGORIES)),
        hidden=_sums(step[beside], lengths[beside], count),
    )


def _sums(where: Array, values: Ints, size: int) -> Ints:
    """Add values up by place, exactly."""
    sums = np.zeros(size, np.int64)
    np.add.at(sums, where, values)
    return sums


def _differs(*columns: Array) -> Flags:
    """Return which rows differ from the one before."""
    new = np.ones(len(columns[0]), np.bool_)
    new[1:] = np.any([values[1:] != values[:-1] for values in columns], axis=0)
    return new


def _either(where: Flags, this: _Code, that: _Code) -> Int16s:
    """Choose codes, in the smallest type that holds them."""
    small = [np.asarray(code, np.int16) for code in (this, that)]
    return np.where(where, *small)


def _covered(bounds: Ints, part: Intervals) -> Flags:
    """Return for each piece whether any interval covers it."""
    size = len(bounds)
    if not len(part.start):
        return np.zeros(size - 1, np.bool_)
    opened = np.bincount(np.searchsorted(bounds, part.start), minlength=size)
    closed = np.bincount(np.searchsorted(bounds, part.end), minlength=size)
    return np.asarray(np.cumsum(opened - closed)[:-1] > 0)


def _innermost(bounds: Ints, spans: Spans, busy: Flags) -> tuple[Int16s, Flags, Int32s]:
    """Return for each piece the innermost phase's code, whether user code is open, and the name."""
    size = len(bounds) - 1
    begin = np.searchsorted(bounds, spans.start)
    meaning = _resolved(bounds, spans, begin, busy)
    code, name = np.full(size, NOTHING, np.int16), np.full(size, NOTHING, np.int32)
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
        means = meaning[span]
        is_user = means == USER
        user[active[is_user]] = True
        code[active[~is_user]] = means[~is_user]
    return code, user, name


def _resolved(bounds: Ints, spans: Spans, begin: Indices, busy: Flags) -> Int16s:
    """Turn blocking spans into communication if any is recorded inside them, else into waiting."""
    meaning = spans.code.astype(np.int16)
    blocked = np.flatnonzero(meaning == BLOCKED)
    before = np.concatenate([[0], np.cumsum(busy)])
    end = np.searchsorted(bounds, spans.end[blocked])
    alone = before[end] == before[begin[blocked]]
    meaning[blocked] = np.where(alone, WAIT, COMMUNICATION)
    return meaning


@dataclass(frozen=True)
class Segments:
    """Pieces process by process, each with the row of `steps` at which its process begins.

    `steps` holds process, rank and step of every window; `words` the names that pieces may have, which
    they tell by their physical numbers.
    """

    cut: tuple[tuple[Pieces, int], ...]
    steps: pl.DataFrame
    words: pl.Series

    def frame(self) -> pl.DataFrame:
        """Return all pieces, by process and time, in `SEGMENT_COLUMNS`."""
        return self._frame([np.ones(len(pieces.step), np.bool_) for pieces, _ in self.cut])

    def of(self, category: str, steps: Ints) -> pl.DataFrame:
        """Return the pieces of one category in some steps."""
        wanted = self.steps["step"].is_in(steps.tolist()).to_numpy()
        code = CATEGORIES.index(category)
        return self._frame(
            [
                (pieces.category == code) & wanted[pieces.step + offset]
                for pieces, offset in self.cut
            ]
        )

    def _frame(self, chosen: list[Flags]) -> pl.DataFrame:
        picked = [
            (pieces, offset, np.flatnonzero(flags))
            for (pieces, offset), flags in zip(self.cut, chosen, strict=True)
        ]
        if not picked:
            return pl.DataFrame(schema=SEGMENT_COLUMNS)
        row = np.concatenate([pieces.step[where] + offset for pieces, offset, where in picked])
        return (
            self.steps.select("process", "rank", "step")[row]
            .with_columns(
                start_ns=np.concatenate([pieces.bounds[:-1][where] for pieces, _, where in picked]),
                end_ns=np.concatenate([pieces.bounds[1:][where] for pieces, _, where in picked]),
                category=categories(_joined(picked, "category")),
                name=self.names(_joined(picked, "name")),
            )
            .select(*SEGMENT_COLUMNS)
        )

    def names(self, codes: Array) -> pl.Series:
        """Turn name numbers back into words; below zero into null."""
        if self.words.is_empty():
            return pl.Series([None] * len(codes), dtype=pl.Categorical)
        numbers = self.words.to_physical().to_numpy()
        row_of = np.zeros(int(numbers.max()) + 2, np.uint32)  # the last one is for -1
        row_of[numbers] = np.arange(len(numbers))
        named = pl.Series(codes >= 0)
        return pl.select(pl.when(named).then(self.words.gather(row_of[codes]))).to_series()


def categories(codes: Array) -> pl.Series:
    """Turn numbers of `CATEGORIES` into words."""
    return pl.Series(CATEGORIES, dtype=pl.Enum(CATEGORIES)).gather(codes)


def _joined(picked: list[tuple[Pieces, int, Indices]], field: str) -> Array:
    return np.concatenate([getattr(pieces, field)[where] for pieces, _, where in picked])


def spent_before(inside: pl.DataFrame, moments: Ints) -> Floats:
    """Return how much of some pieces' time is before each moment; pieces are sorted and disjoint."""
    begins, ends = inside["start_ns"].to_numpy(), inside["end_ns"].to_numpy()
    if not len(begins):
        return np.zeros(moments.shape)
    edges = np.column_stack([begins, ends]).ravel()
    lengths = np.concatenate([[0], np.cumsum(ends - begins)])
    heights = np.column_stack([lengths[:-1], lengths[1:]]).ravel()
    return np.asarray(np.interp(moments, edges, heights))
