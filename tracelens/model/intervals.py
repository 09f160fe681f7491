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

    start_ns: Ints
    end_ns: Ints

    def __reduce__(self) -> tuple[Callable[..., Intervals], tuple[int, Array, Array]]:
        """Send differences and lengths, which mostly fit into 32 bits."""
        first_ns = int(self.start_ns[0]) if len(self.start_ns) else 0
        steps_ns = np.diff(self.start_ns, prepend=first_ns)
        lengths_ns = self.end_ns - self.start_ns
        return self._from_lengths, (first_ns, _to_32_bits(steps_ns), _to_32_bits(lengths_ns))

    @classmethod
    def _from_lengths(cls, first_ns: int, steps_ns: Array, lengths_ns: Array) -> Self:
        start_ns = np.cumsum(steps_ns, dtype=np.int64) + first_ns
        return cls(start_ns, start_ns + lengths_ns)

    @classmethod
    def empty(cls) -> Self:
        """Return no intervals."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))

    @classmethod
    def concatenate(cls, *parts: Intervals) -> Self:
        """Return all intervals of some others."""
        return cls(
            np.concatenate([part.start_ns for part in parts]),
            np.concatenate([part.end_ns for part in parts]),
        )

    @classmethod
    def merge(cls, start_ns: Ints, end_ns: Ints) -> Self:
        """Return the union of some intervals, ns, [interval], in order; those that touch are one."""
        order = np.argsort(start_ns, kind="stable")
        start_ns, covered_until_ns = start_ns[order], np.maximum.accumulate(end_ns[order])
        if not len(start_ns):
            return cls(start_ns, covered_until_ns)
        is_first = np.append(True, start_ns[1:] > covered_until_ns[:-1])
        last_indices = np.append(np.flatnonzero(is_first)[1:] - 1, len(start_ns) - 1)
        return cls(start_ns[is_first], covered_until_ns[last_indices])

    def clip(self, first_ns: int, last_ns: int) -> Intervals:
        """Cut to a window (ns); intervals that are outside or have no length are left out."""
        if not len(self.start_ns):
            return self
        start_ns, end_ns = np.maximum(self.start_ns, first_ns), np.minimum(self.end_ns, last_ns)
        is_kept = start_ns < end_ns
        if is_kept.all():
            return Intervals(start_ns, end_ns)
        return Intervals(start_ns[is_kept], end_ns[is_kept])

    def sort_edges(self) -> Intervals:
        """Sort begins and ends each for itself; which of them belong together is lost."""
        if not len(self.start_ns):
            return self
        return Intervals(np.sort(self.start_ns, kind="stable"), np.sort(self.end_ns, kind="stable"))

    @property
    def total_ns(self) -> int:
        """The sum of all lengths."""
        return int((self.end_ns - self.start_ns).sum())

    def covered_ns_before(self, moments_ns: Ints) -> Ints:
        """Return the time of disjoint, ordered intervals before each moment, ns, [moment]."""
        if not len(self.start_ns):
            return np.zeros(moments_ns.shape, np.int64)
        index = np.searchsorted(self.start_ns, moments_ns, "right") - 1
        length_before_ns = np.concatenate([[0], np.cumsum(self.end_ns - self.start_ns)])
        length_inside_ns = np.minimum(moments_ns, self.end_ns[index]) - self.start_ns[index]
        return np.where(index < 0, 0, length_before_ns[index] + length_inside_ns)


def _to_32_bits(values: Ints) -> Array:
    limits = np.iinfo(np.int32)
    fits = values.min(initial=0) >= limits.min and values.max(initial=0) <= limits.max
    return values.astype(np.int32) if fits else values
