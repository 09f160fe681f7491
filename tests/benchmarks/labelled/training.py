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
    phases_ns = {name: ns(values) for name, values in work.phases.items()}
    uncovered_ns = ns(np.zeros_like(work.gc) if work.uncovered is None else work.uncovered)
    gc, checkpoint = ns(work.gc), ns(work.checkpoint)
    steps, ranks = gc.shape
    buckets = work.transfer.shape[1]
    out = _empty(steps, ranks, buckets, work.layers)
    now_ns = ORIGIN_NS + ns(work.starts)
    for step in range(steps):
        out.start[step] = now_ns
        out.data_start[step] = now_ns + uncovered_ns[step]
        data_end = out.data_start[step] + phases_ns["data"][step]
        computed = phases_ns["forward"][step] + phases_ns["backprop"][step]
        pause_at = (computed * work.gc_at[step]).astype(np.int64)
        in_forward = pause_at < phases_ns["forward"][step]
        forward_end = data_end + phases_ns["forward"][step] + np.where(in_forward, gc[step], 0)
        backprop_end = data_end + computed + gc[step]
        out.data_end[step], out.forward_end[step] = data_end, forward_end
        out.backprop_end[step], out.gc_start[step] = backprop_end, data_end + pause_at
        _reduce(work, step, out)
        now_ns = _update(work, out, step, phases_ns["update"][step])
        out.checkpoint[step] = now_ns
        now_ns = now_ns + checkpoint[step]
        out.end[step] = now_ns
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
    begin_ns, end = out.forward_end[step], out.backprop_end[step]
    buckets = work.transfer.shape[1]
    wire, free, free_ns = ns(work.transfer[step]), np.int64(0), end
    lag = ns(work.lag[step])
    for bucket in range(buckets):
        ready = begin_ns + (end - begin_ns) * (bucket + 1) // buckets if work.overlap else free_ns
        free = max(np.int64(ready.max()), free) + wire[bucket]
        free_ns = free + lag[bucket]
        out.enter[step, :, bucket], out.leave[step, :, bucket] = ready, free_ns
    out.reduced[step] = np.maximum(free_ns, end)


def _update(work: Work, out: Played, step: int, whole: Times) -> Times:
    """Update layer by layer, with gaps between, and return when each rank is done."""
    now_ns: Times = out.reduced[step]
    for layer in range(work.layers):
        part = whole * (layer + 1) // work.layers - whole * layer // work.layers
        begin = now_ns if layer == 0 else now_ns + round(work.gap * MS)
        now_ns = begin + part
        out.updates[step, :, layer, 0], out.updates[step, :, layer, 1] = begin, now_ns
    return now_ns
