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
    """Plays the reductions of a scenario hop by hop, and keeps when each message was sent."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._link_slowdown = durations.draw_link_slowdowns(scenario)
        self._hop_count = max(2 * (scenario.ranks - 1), 1)
        # When each rank is in the call of each hop, [step, rank, bucket, hop].
        call_shape = (scenario.steps, scenario.ranks, scenario.buckets, self._hop_count)
        self._begin_ns, self._end_ns = (np.zeros(call_shape, np.int64) for _ in range(2))

    def reduce_buckets(self, step: int, enter_ns: Ints, transfer_ns: Ints, skew_ns: Ints) -> Ints:
        """Play the reductions of one step; return when each rank leaves each, ns, [rank, bucket].

        `enter_ns` is when ranks come, [rank, bucket], `transfer_ns` a reduction's usual time, [bucket],
        `skew_ns` the ranks' exit delays, [bucket, rank]. In a hop rank i sends to i + 1.
        """
        leave_ns = np.empty_like(enter_ns)
        is_blocking = not self._scenario.overlap
        free_ns = enter_ns[:, 0]
        for bucket, duration_ns in enumerate(transfer_ns):
            exact_hop_ns = duration_ns / self._hop_count * self._link_slowdown[step]
            hop_ns = np.rint(exact_hop_ns).astype(np.int64)
            now_ns = free_ns if is_blocking else np.maximum(enter_ns[:, bucket], free_ns)
            for hop in range(self._hop_count):
                sent_ns = np.maximum(now_ns, np.roll(now_ns, -1)) + hop_ns
                self._begin_ns[step, :, bucket, hop] = now_ns
                now_ns = np.maximum(sent_ns, np.roll(sent_ns, 1))
                self._end_ns[step, :, bucket, hop] = now_ns
            free_ns = leave_ns[:, bucket] = now_ns + skew_ns[bucket]
        return leave_ns

    def add_spans(self, sheet: Sheet, columns: dict[str, Any]) -> None:
        """Add spans for each hop's send and receive, inside the reduction with these columns."""
        scenario = self._scenario
        ranks, steps = np.arange(scenario.ranks), np.arange(scenario.steps)[:, None]
        right_rank, left_rank = (ranks + 1) % scenario.ranks, (ranks - 1) % scenario.ranks
        columns = columns | {"depth": columns["depth"] + 1, "kind": "reduction", "key": 0}
        columns |= {"name": "Sendrecv", "communicator": WORLD_UID}
        for bucket, nbytes in enumerate(scenario.bytes_of_buckets):
            for hop in range(self._hop_count):
                seq = (steps * scenario.buckets + bucket) * self._hop_count + hop
                columns |= {"seq": seq, "bytes": nbytes // scenario.ranks}
                begin_ns, end_ns = (
                    times[..., bucket, hop] for times in (self._begin_ns, self._end_ns)
                )
                for op, peer in (("send", right_rank), ("recv", left_rank)):
                    sheet.add_spans(begin_ns, end_ns, op=op, peer=peer, **columns)


@dataclass(frozen=True, eq=False)
class ComputeTimes:
    """Durations of a worker's own work, ns, [step, rank]."""

    data_ns: Ints
    forward_ns: Ints
    backprop_ns: Ints
    update_ns: Ints
    checkpoint_ns: Ints
    gc_ns: Ints


def draw_compute_times(scenario: Scenario) -> ComputeTimes:
    """Draw all compute times of a scenario; an absent rank has none, and delays no other."""
    is_present = membership.find_presence(scenario)
    names = ("data", "forward", "backprop", "update")
    means_ms = {name: getattr(scenario, f"{name}_ms") for name in names}
    means_ms |= {"checkpoint": 0.0, "gc": 0.0}
    times_ns = {name: durations.draw_phase(scenario, name, ms) for name, ms in means_ms.items()}
    return ComputeTimes(**{f"{name}_ns": ns * is_present for name, ns in times_ns.items()})


def simulate(scenario: Scenario, sheet: Sheet) -> None:
    """Add the workers' events of a whole run to `sheet`, in true time.

    Times are [step, rank], of buckets [step, rank, bucket].
    """
    compute = draw_compute_times(scenario)
    shape = (scenario.steps, scenario.ranks)
    start_ns, forward_end_ns, backprop_end_ns = (np.zeros(shape, np.int64) for _ in range(3))
    reduced_ns, end_ns = (np.zeros(shape, np.int64) for _ in range(2))
    enter_ns, leave_ns = (np.zeros((*shape, scenario.buckets), np.int64) for _ in range(2))
    transfer_ns, skew_ns = durations.draw_transfers(scenario), durations.draw_exit_skews(scenario)
    now_ns = np.full(scenario.ranks, ORIGIN_NS, np.int64)
    ring = Ring(scenario) if scenario.hops else None
    reduce_overlapped = partial(_reduce_overlapped, progress=_compute_progress(scenario))
    reduce_buckets = reduce_overlapped if scenario.overlap else _reduce_blocking
    pauses = durations.draw_pauses(scenario)
    for step in range(scenario.steps):
        start_ns[step] = now_ns
        forward_end_ns[step] = (
            now_ns + compute.data_ns[step] + compute.forward_ns[step] + compute.gc_ns[step]
        )
        backprop_end_ns[step] = forward_end_ns[step] + compute.backprop_ns[step]
        step_pauses = [(share, pause_ns[step]) for share, pause_ns in pauses]
        enter_ns[step], leave_ns[step] = reduce_buckets(
            forward_end_ns[step],
            backprop_end_ns[step],
            step_pauses,
            transfer_ns[step],
            skew_ns[step],
        )
        if ring:
            leave_ns[step] = ring.reduce_buckets(
                step, enter_ns[step], transfer_ns[step], skew_ns[step]
            )
            if not scenario.overlap:
                enter_ns[step, :, 1:] = leave_ns[step, :, :-1]
        reduced_ns[step] = np.maximum(leave_ns[step].max(axis=-1), backprop_end_ns[step])
        update_ns = compute.update_ns[step] + _sum_update_gaps_ns(scenario)
        now_ns = end_ns[step] = reduced_ns[step] + update_ns + compute.checkpoint_ns[step]
    record_compute(scenario, sheet, compute, start_ns, reduced_ns)
    record_step(scenario, sheet, start_ns, end_ns)
    _record_reductions(scenario, sheet, enter_ns, leave_ns)
    if ring:
        ring.add_spans(sheet, _make_reduction_columns(scenario))
    if scenario.overlap:
        columns = make_span_columns(scenario) | {"name": "wait_reductions", "kind": "wait"}
        sheet.add_spans(backprop_end_ns, reduced_ns, **columns)


def _compute_progress(scenario: Scenario) -> Ints:
    """Return the progress of backprop at which each bucket is full, [bucket + 1].

    Its unit is arbitrary; the last value is the end of backprop.
    """
    if scenario.bucket_ready:
        return np.rint(np.array([*scenario.bucket_ready, 1.0]) * 1e6).astype(np.int64)
    bucket_bytes = np.array(scenario.bytes_of_buckets, np.int64)
    progress = np.cumsum(np.maximum(bucket_bytes // max(np.gcd.reduce(bucket_bytes), 1), 1))
    return np.append(progress, progress[-1])


def _reduce_overlapped(
    begin_ns: Ints,
    end_ns: Ints,
    step_pauses: Sequence[tuple[float, Ints]],
    transfer_ns: Ints,
    skew_ns: Ints,
    *,
    progress: Ints,
) -> tuple[Ints, Ints]:
    """Reduce buckets while backprop runs from `begin_ns` to `end_ns`, [rank].

    Returns when each rank enters and leaves each bucket, ns, [rank, bucket]. A pause is the share of
    backprop before it, and its length, ns, [rank]. A bucket takes `transfer_ns` on the network,
    [bucket]; ranks leave it after `skew_ns`, [bucket, rank]. `progress` is that of `_compute_progress`.
    """
    compute_ns = end_ns - begin_ns - sum(pause_ns for _, pause_ns in step_pauses)
    enter_ns = begin_ns[:, None] + compute_ns[:, None] * progress[:-1] // progress[-1]
    for share, pause_ns in step_pauses:
        enter_ns += pause_ns[:, None] * (progress[:-1] > share * progress[-1])
    leave_ns = np.empty_like(enter_ns)
    network_free_ns = np.int64(0)  # the network reduces one bucket after the other
    for bucket, bucket_transfer_ns in enumerate(transfer_ns):
        network_free_ns = max(enter_ns[:, bucket].max(), network_free_ns) + bucket_transfer_ns
        leave_ns[:, bucket] = network_free_ns + skew_ns[bucket]
    return enter_ns, leave_ns


def _reduce_blocking(
    _begin_ns: Ints, end_ns: Ints, _step_pauses: object, transfer_ns: Ints, skew_ns: Ints
) -> tuple[Ints, Ints]:
    """Return when ranks enter and leave the reduction of each bucket, ns, [rank, bucket].

    Bucket after bucket is reduced once backprop ends: `end_ns`, [rank]. `transfer_ns` is [bucket],
    `skew_ns`, how much later a rank leaves, [bucket, rank].
    """
    enter_ns, leave_ns = [], []
    now_ns = end_ns
    for bucket_transfer_ns, bucket_skew_ns in zip(transfer_ns, skew_ns, strict=True):
        enter_ns.append(now_ns)
        now_ns = now_ns.max() + bucket_transfer_ns + bucket_skew_ns
        leave_ns.append(now_ns)
    return np.stack(enter_ns, axis=1), np.stack(leave_ns, axis=1)


def _sum_update_gaps_ns(scenario: Scenario) -> int:
    return round(scenario.update_gap_ms * MILLISECOND) * (scenario.layers - 1)


def make_span_columns(scenario: Scenario, depth: int = 1) -> dict[str, Any]:
    """Return columns of workers' spans, [step, rank]; `depth` is in how many spans they are nested."""
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
    step_columns = make_span_columns(scenario, depth=0)
    sheet.add_spans(start_ns, end_ns, name="step", kind="step", **step_columns)
    sheet.add_counters(end_ns, scenario.samples, name="samples", **make_span_columns(scenario))


def record_compute(
    scenario: Scenario,
    sheet: Sheet,
    compute: ComputeTimes,
    start_ns: Ints,
    update_begin_ns: Ints | None,
) -> None:
    """Add the spans of own work, which begins at `start_ns`; arrays are [step, rank].

    `update_begin_ns` is None where the parameter servers update.
    """
    columns = make_span_columns(scenario)
    data_end_ns = start_ns + compute.data_ns
    forward_end_ns = data_end_ns + compute.forward_ns + compute.gc_ns
    backprop_end_ns = forward_end_ns + compute.backprop_ns
    sheet.add_spans(start_ns, data_end_ns, name="next_batch", kind="data", **columns)
    sheet.add_spans(data_end_ns, forward_end_ns, name="forward", kind="forward", **columns)
    sheet.add_spans(forward_end_ns, backprop_end_ns, name="backprop", kind="backprop", **columns)
    inner_columns = make_span_columns(scenario, depth=2)
    record_positive_spans(sheet, data_end_ns, compute.gc_ns, name="gc", kind="gc", **inner_columns)
    if scenario.layers > 1:
        _record_layers(scenario, sheet, data_end_ns + compute.gc_ns, compute.forward_ns, "forward")
        _record_layers(scenario, sheet, forward_end_ns, compute.backprop_ns, "backprop")
    if update_begin_ns is None:
        return
    gap_ns = round(scenario.update_gap_ms * MILLISECOND)
    for layer in range(scenario.layers):
        begin_ns = update_begin_ns + compute.update_ns * layer // scenario.layers
        end_ns = update_begin_ns + compute.update_ns * (layer + 1) // scenario.layers
        name = f"update.{layer}" if scenario.layers > 1 else "update"
        bucket = layer if scenario.layers > 1 else None
        gaps_ns = gap_ns * layer  # before this layer's update
        sheet.add_spans(
            begin_ns + gaps_ns, end_ns + gaps_ns, name=name, kind="update", bucket=bucket, **columns
        )
    update_end_ns = update_begin_ns + compute.update_ns + _sum_update_gaps_ns(scenario)
    record_positive_spans(
        sheet, update_end_ns, compute.checkpoint_ns, name="checkpoint", kind="checkpoint", **columns
    )


def _record_layers(
    scenario: Scenario, sheet: Sheet, start_ns: Ints, duration_ns: Ints, kind: str
) -> None:
    """Add a span per layer to a phase of one kind, [step, rank]; backprop begins with the last layer."""
    columns = make_span_columns(scenario, depth=2)
    for position in range(scenario.layers):
        begin_ns = start_ns + duration_ns * position // scenario.layers
        end_ns = start_ns + duration_ns * (position + 1) // scenario.layers
        layer = position if kind == "forward" else scenario.layers - 1 - position
        sheet.add_spans(begin_ns, end_ns, name=f"{kind}.{layer}", kind=kind, **columns)


def record_positive_spans(sheet: Sheet, start_ns: Ints, duration_ns: Ints, **columns: Any) -> None:
    """Add the spans of [step, rank] that have a duration, with these columns."""
    steps, ranks = np.nonzero(duration_ns)
    if len(steps):
        begins_ns, positive_ns = start_ns[steps, ranks], duration_ns[steps, ranks]
        position = {"process": ranks, "rank": ranks, "step": steps}
        sheet.add_spans(begins_ns, begins_ns + positive_ns, **(columns | position))


def _make_reduction_columns(scenario: Scenario) -> dict[str, Any]:
    """Return the columns of reductions; overlapped reductions have their own track."""
    own_track = {"thread": REDUCTION_TRACK, "depth": 0} if scenario.overlap else {}
    return make_span_columns(scenario) | own_track


def _record_reductions(scenario: Scenario, sheet: Sheet, enter_ns: Ints, leave_ns: Ints) -> None:
    """Add a span per reduction, from entry to exit, [step, rank, bucket]."""
    columns = _make_reduction_columns(scenario)
    steps = np.arange(scenario.steps)[:, None]
    for bucket in range(scenario.buckets):
        sheet.add_spans(
            enter_ns[..., bucket],
            leave_ns[..., bucket],
            name="allreduce",
            kind="reduction",
            op="allreduce",
            communicator=membership.find_communicators(scenario),
            seq=steps * scenario.buckets + bucket,
            bucket=bucket,
            bytes=scenario.bytes_of_buckets[bucket],
            **columns,
        )
