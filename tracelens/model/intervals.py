"""Intervals of time: begins and ends as two arrays, clipped, merged, and asked how much has passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.arrays import Array, Ints


@dataclass(frozen=True, eq=False)
class Intervals:
    """Begin and end of intervals, [interval], nanoseconds; in any order unless a method asks for one."""

    start: Ints
    end: Ints

    def __reduce__(self) -> tuple[Callable[..., Intervals], tuple[int, Array, Array]]:
        """Send differences and lengths, which mostly fit into 32 bits."""
        first = int(self.start[0]) if len(self.start) else 0
        steps = np.diff(self.start, prepend=first)
        return self._from_lengths, (first, _shrink(steps), _shrink(self.end - self.start))

    @classmethod
    def _from_lengths(cls, first: int, steps: Array, lengths: Array) -> Self:
        start = np.cumsum(steps, dtype=np.int64) + first
        return cls(start, start + lengths)

    @classmethod
    def empty(cls) -> Self:
        """Return no intervals."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))

    @classmethod
    def concatenate(cls, *parts: Intervals) -> Self:
        """Return all intervals of some others."""
        return cls(
            np.concatenate([part.start for part in parts]),
            np.concatenate([part.end for part in parts]),
        )

    @classmethod
    def merge(cls, start: Ints, end: Ints) -> Self:
        """Return the time that any of some intervals covers, in order; those that touch are one."""
        order = np.argsort(start, kind="stable")
        start, reached = start[order], np.maximum.accumulate(end[order])
        if not len(start):
            return cls(start, reached)
        is_first = np.append(True, start[1:] > reached[:-1])
        last = np.append(np.flatnonzero(is_first)[1:] - 1, len(start) - 1)
        return cls(start[is_first], reached[last])

    def clip(self, first: int, last: int) -> Intervals:
        """Cut to a window; intervals that are outside or have no length are left out."""
        start, end = np.maximum(self.start, first), np.minimum(self.end, last)
        lasts = start < end
        return Intervals(start, end) if lasts.all() else Intervals(start[lasts], end[lasts])

    def sort_edges(self) -> Intervals:
        """Sort begins and ends each for itself; which of them belong together is lost."""
        return Intervals(np.sort(self.start, kind="stable"), np.sort(self.end, kind="stable"))

    @property
    def total_ns(self) -> int:
        """The sum of all lengths."""
        return int((self.end - self.start).sum())

    def passed_before(self, moments: Ints) -> Ints:
        """Return how much of disjoint intervals in order lies before each moment, ns, as `moments`."""
        if not len(self.start):
            return np.zeros(moments.shape, np.int64)
        row = np.searchsorted(self.start, moments, "right") - 1
        before = np.concatenate([[0], np.cumsum(self.end - self.start)])
        inside = np.minimum(moments, self.end[row]) - self.start[row]
        return np.where(row < 0, 0, before[row] + inside)


def _shrink(values: Ints) -> Array:
    limits = np.iinfo(np.int32)
    fits = values.min(initial=0) >= limits.min and values.max(initial=0) <= limits.max
    return values.astype(np.int32) if fits else values
