"""Simulates data-parallel steps that end in allreduces of gradient buckets, cause by cause.

A bucket is ready when its fraction of backprop is done, pauses not counted; its reduction goes when the
last rank has come and the one before it is through; every rank leaves it shortly after it is done.

A reduction may also be a ring of point-to-point messages, so that each link has a pace of its own.
In each of its 2 (n - 1) hops every rank sends a part of the payload to the next rank and takes one
from the rank before, in one call: a message goes when both ends are in it, and a rank goes on when
both of its messages are through. So a slow link slows all ranks, but only its own messages take
long.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.simulator import durations, membership
from tracelens.simulator.scenario import MILLISECOND, ORIGIN_NS
from tracelens.simulator.sheet import WORLD_UID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Ints
    from tracelens.simulator.scenario import Scenario
    from tracelens.simulator.sheet import Sheet

TRAINING_THREAD = 0
REDUCTION_TRACK = 1


class Ring:
    """Plays the reductions of a scenario hop by hop, and keeps when each was."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._pace = durations.links(scenario)
        self._count = max(2 * (scenario.ranks - 1), 1)
        shape = (scenario.steps, scenario.ranks, scenario.buckets, self._count)
        self._begin, self._end = (np.zeros(shape, np.int64) for _ in range(2))

    def replay(self, step: int, enter: Ints, transfers: Ints, skews: Ints) -> Ints:
        """Return when each rank leaves each bucket's reduction, [rank, bucket]."""
        leave = np.empty_like(enter)
        blocking = not self._scenario.overlap
        free = enter[:, 0]
        for bucket, transfer in enumerate(transfers):
            lasting = np.rint(transfer / self._count * self._pace[step]).astype(np.int64)
            now = free if blocking else np.maximum(enter[:, bucket], free)
            for hop in range(self._count):
                through = np.maximum(now, np.roll(now, -1)) + lasting
                self._begin[step, :, bucket, hop] = now
                now = np.maximum(through, np.roll(through, 1))
                self._end[step, :, bucket, hop] = now
            free = leave[:, bucket] = now + skews[bucket]
        return leave

    def record(self, sheet: Sheet, place: dict[str, Any]) -> None:
        """Add both messages of every hop, within the reduction's span."""
        scenario = self._scenario
        rank, steps = np.arange(scenario.ranks), np.arange(scenario.steps)[:, None]
        right, left = (rank + 1) % scenario.ranks, (rank - 1) % scenario.ranks
        place = place | {"depth": place["depth"] + 1, "kind": "reduction", "key": 0}
        for bucket, nbytes in enumerate(scenario.bytes_of_buckets):
            for hop in range(self._count):
                seq = (steps * scenario.buckets + bucket) * self._count + hop
                columns = {"communicator": WORLD_UID, "seq": seq, "bytes": nbytes // scenario.ranks}
                begin, end = (times[..., bucket, hop] for times in (self._begin, self._end))
                for op, peer in (("send", right), ("recv", left)):
                    sheet.spans(begin, end, name="Sendrecv", op=op, peer=peer, **columns, **place)


@dataclass(frozen=True, eq=False)
class ComputeTimes:
    """Durations of a worker's own work, [step, rank]."""

    data: Ints
    forward: Ints
    backprop: Ints
    update: Ints
    checkpoint: Ints
    gc: Ints


def draw_compute_times(scenario: Scenario) -> ComputeTimes:
    """Draw all compute times of a scenario; a rank that is absent has none, and delays no other."""
    there = membership.present(scenario)
    means = {
        "data": scenario.data_ms,
        "forward": scenario.forward_ms,
        "backprop": scenario.backprop_ms,
        "update": scenario.update_ms,
        "checkpoint": 0.0,
        "gc": 0.0,
    }
    return ComputeTimes(
        **{name: durations.phase(scenario, name, ms) * there for name, ms in means.items()}
    )


def simulate(scenario: Scenario, sheet: Sheet) -> None:
    """Add the workers' events of a whole run to `sheet`, in true time."""
    own = draw_compute_times(scenario)
    shape = (scenario.steps, scenario.ranks)
    start, ready, backprop_end, done, end = (np.zeros(shape, np.int64) for _ in range(5))
    enter, leave = (np.zeros((*shape, scenario.buckets), np.int64) for _ in range(2))
    transfers, skews = durations.transfers(scenario), durations.exit_skews(scenario)
    now = np.full(scenario.ranks, ORIGIN_NS, np.int64)
    hops = Ring(scenario) if scenario.hops else None
    reduce = partial(_overlapped, shares=_made(scenario)) if scenario.overlap else _blocking
    pauses = durations.pauses(scenario)
    for step in range(scenario.steps):
        start[step] = now
        ready[step] = now + own.data[step] + own.forward[step] + own.gc[step]
        backprop_end[step] = ready[step] + own.backprop[step]
        paused = [(at, lasting[step]) for at, lasting in pauses]
        enter[step], leave[step] = reduce(
            ready[step], backprop_end[step], paused, transfers[step], skews[step]
        )
        if hops:
            leave[step] = hops.replay(step, enter[step], transfers[step], skews[step])
            if not scenario.overlap:
                enter[step, :, 1:] = leave[step, :, :-1]
        done[step] = np.maximum(leave[step].max(axis=-1), backprop_end[step])
        end[step] = done[step] + own.update[step] + own.checkpoint[step] + _gaps(scenario)
        now = end[step]
    record_compute(scenario, sheet, own, start, done)
    record_step(scenario, sheet, start, end)
    _record_reductions(scenario, sheet, enter, leave)
    if hops:
        hops.record(sheet, _reduction_place(scenario))
    if scenario.overlap:
        sheet.spans(backprop_end, done, name="wait_reductions", kind="wait", **at(scenario))


def _made(scenario: Scenario) -> Ints:
    """Return how much of backprop is done when each bucket is full, and last, what all of it is."""
    if scenario.bucket_ready:
        return np.rint(np.array([*scenario.bucket_ready, 1.0]) * 1e6).astype(np.int64)
    sizes = np.array(scenario.bytes_of_buckets, np.int64)
    shares = np.cumsum(np.maximum(sizes // max(np.gcd.reduce(sizes), 1), 1))
    return np.append(shares, shares[-1])


def _overlapped(
    begin: Ints,
    end: Ints,
    paused: Sequence[tuple[float, Ints]],
    transfers: Ints,
    skews: Ints,
    *,
    shares: Ints,
) -> tuple[Ints, Ints]:
    """Reduce buckets while backprop runs: when each rank enters and leaves, [rank, bucket]."""
    working = end - begin - sum(lasting for _, lasting in paused)
    enter = begin[:, None] + working[:, None] * shares[:-1] // shares[-1]
    for at, lasting in paused:
        enter += lasting[:, None] * (shares[:-1] > at * shares[-1])
    leave = np.empty_like(enter)
    free = np.int64(0)
    for bucket, transfer in enumerate(transfers):
        free = max(enter[:, bucket].max(), free) + transfer
        leave[:, bucket] = free + skews[bucket]
    return enter, leave


def _blocking(
    _begin: Ints, end: Ints, _paused: object, transfers: Ints, skews: Ints
) -> tuple[Ints, Ints]:
    """Reduce bucket after bucket once backprop is over, as `_overlapped`."""
    enter, leave = [], []
    now = end
    for transfer, skew in zip(transfers, skews, strict=True):
        enter.append(now)
        now = now.max() + transfer + skew
        leave.append(now)
    return np.stack(enter, axis=1), np.stack(leave, axis=1)


def _gaps(scenario: Scenario) -> int:
    return round(scenario.update_gap_ms * MILLISECOND) * (scenario.layers - 1)


def at(scenario: Scenario, depth: int = 1) -> dict[str, Any]:
    """Where the workers' spans stand: process, rank, role, step, thread, depth."""
    rank = np.arange(scenario.ranks)
    return {
        "process": rank,
        "rank": rank,
        "role": "worker",
        "step": np.arange(scenario.steps)[:, None],
        "thread": TRAINING_THREAD,
        "depth": depth,
    }


def record_step(scenario: Scenario, sheet: Sheet, start: Ints, end: Ints) -> None:
    """Add the step spans and the samples that each step worked on."""
    sheet.spans(start, end, name="step", kind="step", **at(scenario, 0))
    sheet.counters(end, scenario.samples, name="samples", **at(scenario))


def record_compute(
    scenario: Scenario,
    sheet: Sheet,
    own: ComputeTimes,
    start: Ints,
    update_at: Ints | None,
) -> None:
    """Add the spans of own work; `update_at` is null where the parameter servers update."""
    place = at(scenario)
    data_end = start + own.data
    forward_end = data_end + own.forward + own.gc
    backprop_end = forward_end + own.backprop
    sheet.spans(start, data_end, name="next_batch", kind="data", **place)
    sheet.spans(data_end, forward_end, name="forward", kind="forward", **place)
    sheet.spans(forward_end, backprop_end, name="backprop", kind="backprop", **place)
    only(sheet, data_end, own.gc, name="gc", kind="gc", **at(scenario, 2))
    if scenario.layers > 1:
        _layers(scenario, sheet, data_end + own.gc, own.forward, "forward")
        _layers(scenario, sheet, forward_end, own.backprop, "backprop")
    if update_at is None:
        return
    gap = round(scenario.update_gap_ms * MILLISECOND)
    for layer in range(scenario.layers):
        begin = update_at + own.update * layer // scenario.layers
        finish = update_at + own.update * (layer + 1) // scenario.layers
        name = f"update.{layer}" if scenario.layers > 1 else "update"
        bucket = layer if scenario.layers > 1 else None
        moved = gap * layer
        sheet.spans(begin + moved, finish + moved, name=name, kind="update", bucket=bucket, **place)
    update_end = update_at + own.update + _gaps(scenario)
    only(sheet, update_end, own.checkpoint, name="checkpoint", kind="checkpoint", **place)


def _layers(scenario: Scenario, sheet: Sheet, start: Ints, duration: Ints, kind: str) -> None:
    for index in range(scenario.layers):
        begin = start + duration * index // scenario.layers
        end = start + duration * (index + 1) // scenario.layers
        layer = index if kind == "forward" else scenario.layers - 1 - index
        sheet.spans(begin, end, name=f"{kind}.{layer}", kind=kind, **at(scenario, 2))


def only(sheet: Sheet, start: Ints, duration: Ints, **columns: Any) -> None:
    """Add a span only where it lasts."""
    steps, ranks = np.nonzero(duration)
    if len(steps):
        begin, lasting = start[steps, ranks], duration[steps, ranks]
        where = {"process": ranks, "rank": ranks, "step": steps}
        sheet.spans(begin, begin + lasting, **(columns | where))


def _reduction_place(scenario: Scenario) -> dict[str, Any]:
    beside = {"thread": REDUCTION_TRACK, "depth": 0} if scenario.overlap else {}
    return at(scenario) | beside


def _record_reductions(scenario: Scenario, sheet: Sheet, enter: Ints, leave: Ints) -> None:
    place = _reduction_place(scenario)
    steps = np.arange(scenario.steps)[:, None]
    for bucket in range(scenario.buckets):
        sheet.spans(
            enter[..., bucket],
            leave[..., bucket],
            name="allreduce",
            kind="reduction",
            op="allreduce",
            communicator=membership.communicator_of_steps(scenario),
            seq=steps * scenario.buckets + bucket,
            bucket=bucket,
            bytes=scenario.bytes_of_buckets[bucket],
            **place,
        )
