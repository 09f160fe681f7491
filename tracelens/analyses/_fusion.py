"""What sending the same bytes in fewer messages would save: each step's calls are played again, fused.

Calls of a communicator hold the wire one after the other. A fused message goes when its last part is
ready and the one before is through, and takes what its parts took less the latency of all but one. Parts
must wait for each other, so the best number of messages is tried out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Calls", "Fused", "best", "through"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Calls:
    """The calls of a communicator in steps that have equally many of them, [step, call]."""

    steps: Ints
    ready: Ints
    wire: Ints
    nbytes: Ints
    blocking: bool

    @classmethod
    def of(cls, calls: pl.DataFrame) -> list[Calls]:
        """Take apart the calls of one communicator by how many a step has."""
        numbers = calls["step"].to_numpy()
        names = ("ready_ns", "wire_ns", "bytes")
        columns = [calls[name].to_numpy() for name in names]
        steps, first, count = np.unique(numbers, return_index=True, return_counts=True)
        blocking = bool(calls["blocking"].any())
        parts = []
        for many in np.unique(count):
            rows = first[count == many][:, None] + np.arange(many)
            ready, wire, nbytes = (column[rows] for column in columns)
            parts.append(cls(steps[count == many], ready, wire, nbytes, blocking))
        return parts


@dataclass(frozen=True)
class Fused:
    """`saved` nanoseconds of each step, with `messages` instead of `calls`."""

    steps: Ints
    saved: Floats
    messages: int
    calls: int


def best(calls: Calls, latency_ns: float, exposed: Floats) -> Fused:
    """Try 1, 2, 3, 4, 6, 8, 12 ... messages; a step saves at most what it has of exposed transfer."""
    many = calls.wire.shape[1]
    ends = through(calls, calls.wire)
    chosen = Fused(calls.steps, np.zeros(len(calls.steps)), many, many)
    powers = [1 << power for power in range(max(many - 1, 0).bit_length())]
    numbers = {number for power in powers for number in (power, power + power // 2)}
    for parts in sorted(number for number in numbers if number < many):
        saved = np.clip(ends - _fused(calls, parts, latency_ns), 0, exposed)
        if saved.sum() > chosen.saved.sum():
            chosen = Fused(calls.steps, saved, parts, many)
    return chosen


def through(calls: Calls, wire: Ints | Floats) -> Floats:
    """Return when the last call of each step is through, were the wire held for `wire`."""
    if calls.blocking:  # what lies between calls stays as long as it is
        return np.asarray(calls.ready[:, 0] + (wire - calls.wire).sum(axis=1), np.float64)
    free: Floats = np.zeros(len(calls.steps))
    for call in range(wire.shape[1]):
        free = np.asarray(np.maximum(calls.ready[:, call], free) + wire[:, call], np.float64)
    return free


def _fused(calls: Calls, messages: int, latency_ns: float) -> Floats:
    """Return when each step's last message is through."""
    middle = (np.cumsum(calls.nbytes[0]) - calls.nbytes[0] / 2) / max(calls.nbytes[0].sum(), 1)
    part = np.minimum((middle * messages).astype(np.int64), messages - 1)
    begins = np.flatnonzero(np.diff(part, prepend=-1))
    size = np.diff(np.append(begins, len(part)))
    least = np.maximum(calls.wire.min(axis=1, keepdims=True), 1)
    kept = np.add.reduceat(calls.wire, begins, axis=1) - (size - 1) * latency_ns
    wire = np.maximum(kept, least)
    if calls.blocking:
        return np.asarray(calls.ready[:, 0] + wire.sum(axis=1) - calls.wire.sum(axis=1))
    ready = np.maximum.reduceat(calls.ready, begins, axis=1)
    moved = Calls(calls.steps, ready, wire.astype(np.int64), calls.nbytes, blocking=False)
    return through(moved, wire)
