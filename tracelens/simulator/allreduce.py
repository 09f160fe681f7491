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

    def replay(self, step: int, enter_ns: Ints, transfer_ns: Ints, skew_ns: Ints) -> Ints:
        """Return when each rank leaves each bucket's reduction, [rank, bucket]."""
        leave_ns = np.empty_like(enter_ns)
        is_blocking = not self._scenario.overlap
        free_ns = enter_ns[:, 0]
        for bucket, transfer in enumerate(transfer_ns):
            hop_ns = np.rint(transfer / self._count * self._pace[step]).astype(np.int64)
            now_ns = free_ns if is_blocking else np.maximum(enter_ns[:, bucket], free_ns)
            for hop in range(self._count):
                through_ns = np.maximum(now_ns, np.roll(now_ns, -1)) + hop_ns
                self._begin[step, :, bucket, hop] = now_ns
                now_ns = np.maximum(through_ns, np.roll(through_ns, 1))
                self._end[step, :, bucket, hop] = now_ns
            free_ns = leave_ns[:, bucket] = now_ns + skew_ns[bucket]
        return leave_ns

    def record(self, sheet: Sheet, columns: dict[str, Any]) -> None:
        """Add both messages of every hop, within the reduction's span, whose `columns` are these."""
        scenario = self._scenario
        rank, steps = np.arange(scenario.ranks), np.arange(scenario.steps)[:, None]
        right_rank, left_rank = (rank + 1) % scenario.ranks, (rank - 1) % scenario.ranks
        columns = columns | {"depth": columns["depth"] + 1, "kind": "reduction", "key": 0}
        columns |= {"name": "Sendrecv", "communicator": WORLD_UID}
        for bucket, nbytes in enumerate(scenario.bytes_of_buckets):
            for hop in range(self._count):
                seq = (steps * scenario.buckets + bucket) * self._count + hop
                columns |= {"seq": seq, "bytes": nbytes // scenario.ranks}
                begin_ns, end_ns = (times[..., bucket, hop] for times in (self._begin, self._end))
                for op, peer in (("send", right_rank), ("recv", left_rank)):
                    sheet.spans(begin_ns, end_ns, op=op, peer=peer, **columns)


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
    is_present = membership.present(scenario)
    means_ms = {
        "data": scenario.data_ms,
        "forward": scenario.forward_ms,
        "backprop": scenario.backprop_ms,
        "update": scenario.update_ms,
        "checkpoint": 0.0,
        "gc": 0.0,
    }
    return ComputeTimes(
        **{name: durations.phase(scenario, name, ms) * is_present for name, ms in means_ms.items()}
    )


def simulate(scenario: Scenario, sheet: Sheet) -> None:
    """Add the workers' events of a whole run to `sheet`, in true time."""
    compute = draw_compute_times(scenario)
    shape = (scenario.steps, scenario.ranks)
    start, ready, backprop_end, done, end = (np.zeros(shape, np.int64) for _ in range(5))
    enter, leave = (np.zeros((*shape, scenario.buckets), np.int64) for _ in range(2))
    transfer_ns, skew_ns = durations.transfers(scenario), durations.exit_skews(scenario)
    now_ns = np.full(scenario.ranks, ORIGIN_NS, np.int64)
    hops = Ring(scenario) if scenario.hops else None
    overlapped = partial(_reduce_overlapped, shares=_backprop_shares(scenario))
    reduce = overlapped if scenario.overlap else _reduce_blocking
    pauses = durations.pauses(scenario)
    for step in range(scenario.steps):
        start[step] = now_ns
        ready[step] = now_ns + compute.data[step] + compute.forward[step] + compute.gc[step]
        backprop_end[step] = ready[step] + compute.backprop[step]
        step_pauses = [(share, pause_ns[step]) for share, pause_ns in pauses]
        enter[step], leave[step] = reduce(
            ready[step], backprop_end[step], step_pauses, transfer_ns[step], skew_ns[step]
        )
        if hops:
            leave[step] = hops.replay(step, enter[step], transfer_ns[step], skew_ns[step])
            if not scenario.overlap:
                enter[step, :, 1:] = leave[step, :, :-1]
        done[step] = np.maximum(leave[step].max(axis=-1), backprop_end[step])
        own_ns = compute.update[step] + compute.checkpoint[step] + _update_gaps_ns(scenario)
        now_ns = end[step] = done[step] + own_ns
    record_compute(scenario, sheet, compute, start, done)
    record_step(scenario, sheet, start, end)
    _record_reductions(scenario, sheet, enter, leave)
    if hops:
        hops.record(sheet, _reduction_place(scenario))
    if scenario.overlap:
        sheet.spans(
            backprop_end, done, name="wait_reductions", kind="wait", **span_columns(scenario)
        )


def _backprop_shares(scenario: Scenario) -> Ints:
    """Return the progress of backprop at which each bucket is full, and of its end, [bucket + 1]."""
    if scenario.bucket_ready:
        return np.rint(np.array([*scenario.bucket_ready, 1.0]) * 1e6).astype(np.int64)
    sizes = np.array(scenario.bytes_of_buckets, np.int64)
    shares = np.cumsum(np.maximum(sizes // max(np.gcd.reduce(sizes), 1), 1))
    return np.append(shares, shares[-1])


def _reduce_overlapped(
    begin_ns: Ints,
    end_ns: Ints,
    step_pauses: Sequence[tuple[float, Ints]],
    transfer_ns: Ints,
    skew_ns: Ints,
    *,
    shares: Ints,
) -> tuple[Ints, Ints]:
    """Reduce buckets while backprop runs: when each rank enters and leaves, [rank, bucket]."""
    working_ns = end_ns - begin_ns - sum(pause_ns for _, pause_ns in step_pauses)
    enter_ns = begin_ns[:, None] + working_ns[:, None] * shares[:-1] // shares[-1]
    for share, pause_ns in step_pauses:
        enter_ns += pause_ns[:, None] * (shares[:-1] > share * shares[-1])
    leave_ns = np.empty_like(enter_ns)
    free_ns = np.int64(0)
    for bucket, transfer in enumerate(transfer_ns):
        free_ns = max(enter_ns[:, bucket].max(), free_ns) + transfer
        leave_ns[:, bucket] = free_ns + skew_ns[bucket]
    return enter_ns, leave_ns


def _reduce_blocking(
    _begin: Ints, end_ns: Ints, _paused: object, transfer_ns: Ints, skew_ns: Ints
) -> tuple[Ints, Ints]:
    """Reduce bucket after bucket once backprop is over, as `_reduce_overlapped`."""
    enter_ns, leave_ns = [], []
    now_ns = end_ns
    for transfer, skew in zip(transfer_ns, skew_ns, strict=True):
        enter_ns.append(now_ns)
        now_ns = now_ns.max() + transfer + skew
        leave_ns.append(now_ns)
    return np.stack(enter_ns, axis=1), np.stack(leave_ns, axis=1)


def _update_gaps_ns(scenario: Scenario) -> int:
    return round(scenario.update_gap_ms * MILLISECOND) * (scenario.layers - 1)


def span_columns(scenario: Scenario, depth: int = 1) -> dict[str, Any]:
    """Return the columns that all spans of workers share: process, rank, role, step, thread, depth."""
    rank = np.arange(scenario.ranks)
    return {
        "process": rank,
        "rank": rank,
        "role": "worker",
        "step": np.arange(scenario.steps)[:, None],
        "thread": TRAINING_THREAD,
        "depth": depth,
    }


def record_step(scenario: Scenario, sheet: Sheet, start_ns: Ints, end_ns: Ints) -> None:
    """Add the step spans and the samples that each step worked on."""
    sheet.spans(start_ns, end_ns, name="step", kind="step", **span_columns(scenario, 0))
    sheet.counters(end_ns, scenario.samples, name="samples", **span_columns(scenario))


def record_compute(
    scenario: Scenario,
    sheet: Sheet,
    compute: ComputeTimes,
    start_ns: Ints,
    update_ns: Ints | None,
) -> None:
    """Add the spans of own work; `update_ns` is null where the parameter servers update."""
    columns = span_columns(scenario)
    data_end = start_ns + compute.data
    forward_end = data_end + compute.forward + compute.gc
    backprop_end = forward_end + compute.backprop
    sheet.spans(start_ns, data_end, name="next_batch", kind="data", **columns)
    sheet.spans(data_end, forward_end, name="forward", kind="forward", **columns)
    sheet.spans(forward_end, backprop_end, name="backprop", kind="backprop", **columns)
    only(sheet, data_end, compute.gc, name="gc", kind="gc", **span_columns(scenario, 2))
    if scenario.layers > 1:
        _record_layers(scenario, sheet, data_end + compute.gc, compute.forward, "forward")
        _record_layers(scenario, sheet, forward_end, compute.backprop, "backprop")
    if update_ns is None:
        return
    gap_ns = round(scenario.update_gap_ms * MILLISECOND)
    for layer in range(scenario.layers):
        begin_ns = update_ns + compute.update * layer // scenario.layers
        end_ns = update_ns + compute.update * (layer + 1) // scenario.layers
        name = f"update.{layer}" if scenario.layers > 1 else "update"
        bucket = layer if scenario.layers > 1 else None
        gap_sum_ns = gap_ns * layer
        sheet.spans(
            begin_ns + gap_sum_ns,
            end_ns + gap_sum_ns,
            name=name,
            kind="update",
            bucket=bucket,
            **columns,
        )
    update_end = update_ns + compute.update + _update_gaps_ns(scenario)
    only(sheet, update_end, compute.checkpoint, name="checkpoint", kind="checkpoint", **columns)


def _record_layers(
    scenario: Scenario, sheet: Sheet, start_ns: Ints, duration_ns: Ints, kind: str
) -> None:
    for index in range(scenario.layers):
        begin_ns = start_ns + duration_ns * index // scenario.layers
        end_ns = start_ns + duration_ns * (index + 1) // scenario.layers
        layer = index if kind == "forward" else scenario.layers - 1 - index
        sheet.spans(
            begin_ns, end_ns, name=f"{kind}.{layer}", kind=kind, **span_columns(scenario, 2)
        )


def only(sheet: Sheet, start_ns: Ints, duration_ns: Ints, **columns: Any) -> None:
    """Add a span only where it lasts."""
    steps, ranks = np.nonzero(duration_ns)
    if len(steps):
        begin_ns, lasting_ns = start_ns[steps, ranks], duration_ns[steps, ranks]
        position = {"process": ranks, "rank": ranks, "step": steps}
        sheet.spans(begin_ns, begin_ns + lasting_ns, **(columns | position))


def _reduction_place(scenario: Scenario) -> dict[str, Any]:
    beside = {"thread": REDUCTION_TRACK, "depth": 0} if scenario.overlap else {}
    return span_columns(scenario) | beside


def _record_reductions(scenario: Scenario, sheet: Sheet, enter_ns: Ints, leave_ns: Ints) -> None:
    columns = _reduction_place(scenario)
    steps = np.arange(scenario.steps)[:, None]
    for bucket in range(scenario.buckets):
        sheet.spans(
            enter_ns[..., bucket],
            leave_ns[..., bucket],
            name="allreduce",
            kind="reduction",
            op="allreduce",
            communicator=membership.communicator_of_steps(scenario),
            seq=steps * scenario.buckets + bucket,
            bucket=bucket,
            bytes=scenario.bytes_of_buckets[bucket],
            **columns,
        )
