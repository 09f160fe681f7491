"""Plays a synchronous training, event by event: who arrives when, who waits, when the next step begins.

A bucket of gradients is ready when its part of backprop is done. Its reduction goes when the last rank
has come and the wire is free, and lets every rank go shortly after. A rank begins its next step when
its own update is done. Playing the same work without a fault gives what the fault really costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from benchmarks.labelled.setting import Floats, Times
    from benchmarks.labelled.work import Work

ORIGIN_NS: Final = 4_000_000_000_000
MS: Final = 1_000_000


@dataclass
class Played:
    """When everything happened, in true nanoseconds, [step, rank] or [step, rank, bucket]."""

    start: Times
    data_start: Times
    data_end: Times
    forward_end: Times
    backprop_end: Times
    gc_start: Times
    enter: Times
    leave: Times
    reduced: Times
    updates: Times  # [step, rank, layer, begin | end]
    checkpoint: Times
    end: Times

    @property
    def job_ns(self) -> int:
        """From the first step's begin to the last one's end."""
        return int(self.end.max() - self.start.min())


def play(work: Work) -> Played:
    """Run it."""
    own = {name: ns(values) for name, values in work.phases.items()}
    before = ns(np.zeros_like(work.gc) if work.uncovered is None else work.uncovered)
    gc, checkpoint = ns(work.gc), ns(work.checkpoint)
    steps, ranks = gc.shape
    buckets = work.transfer.shape[1]
    out = _empty(steps, ranks, buckets, work.layers)
    now = ORIGIN_NS + ns(work.starts)
    for step in range(steps):
        out.start[step] = now
        out.data_start[step] = now + before[step]
        data_end = out.data_start[step] + own["data"][step]
        computed = own["forward"][step] + own["backprop"][step]
        pause_at = (computed * work.gc_at[step]).astype(np.int64)
        in_forward = pause_at < own["forward"][step]
        forward_end = data_end + own["forward"][step] + np.where(in_forward, gc[step], 0)
        backprop_end = data_end + computed + gc[step]
        out.data_end[step], out.forward_end[step] = data_end, forward_end
        out.backprop_end[step], out.gc_start[step] = backprop_end, data_end + pause_at
        _reduce(work, step, out)
        now = _update(work, out, step, own["update"][step])
        out.checkpoint[step] = now
        now = now + checkpoint[step]
        out.end[step] = now
    return out


def ns(milliseconds: Floats) -> Times:
    """Turn milliseconds into nanoseconds."""
    return np.asarray(np.rint(milliseconds * MS), np.int64)


def _empty(steps: int, ranks: int, buckets: int, layers: int) -> Played:
    flat = (
        "start", "data_start", "data_end", "forward_end", "backprop_end", "gc_start", "reduced",
        "checkpoint", "end",
    )  # fmt: skip
    return Played(
        **{name: np.zeros((steps, ranks), np.int64) for name in flat},
        enter=np.zeros((steps, ranks, buckets), np.int64),
        leave=np.zeros((steps, ranks, buckets), np.int64),
        updates=np.zeros((steps, ranks, layers, 2), np.int64),
    )


def _reduce(work: Work, step: int, out: Played) -> None:
    """Let the buckets of a step go through the wire, one after the other."""
    begin, end = out.forward_end[step], out.backprop_end[step]
    buckets = work.transfer.shape[1]
    wire, free, left = ns(work.transfer[step]), np.int64(0), end
    lag = ns(work.lag[step])
    for bucket in range(buckets):
        ready = begin + (end - begin) * (bucket + 1) // buckets if work.overlap else left
        free = max(np.int64(ready.max()), free) + wire[bucket]
        left = free + lag[bucket]
        out.enter[step, :, bucket], out.leave[step, :, bucket] = ready, left
    out.reduced[step] = np.maximum(left, end)


def _update(work: Work, out: Played, step: int, whole: Times) -> Times:
    """Update layer by layer, with gaps between, and return when each rank is done."""
    now: Times = out.reduced[step]
    for layer in range(work.layers):
        part = whole * (layer + 1) // work.layers - whole * layer // work.layers
        begin = now if layer == 0 else now + round(work.gap * MS)
        now = begin + part
        out.updates[step, :, layer, 0], out.updates[step, :, layer, 1] = begin, now
    return now
