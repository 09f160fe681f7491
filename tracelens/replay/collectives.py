"""Replays each step's collectives: with other times on the wire, fused, hidden, or entered earlier.

Calls of a communicator hold the wire one after the other. A fused message goes when its last part is
ready and the one before is through, and takes what its parts took less the latency of all but one.
Parts must wait for each other, so the best number of messages is tried out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.phases import exposed_transfer
from tracelens.model.calls import NEVER, distinct
from tracelens.model.columns import FOREVER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.model.calls import CallGrid
    from tracelens.model.trace import Trace


@dataclass(frozen=True, eq=False)
class StepCalls:
    """The calls of a communicator in steps that have equally many of them, [step, call]."""

    steps: Ints
    ready: Ints
    wire: Ints
    nbytes: Ints
    blocking: bool

    @classmethod
    def of(cls, calls: pl.DataFrame) -> list[StepCalls]:
        """Split the calls of one communicator by how many a step has."""
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


@dataclass(frozen=True, eq=False)
class Fused:
    """`saved` nanoseconds of each step, with `messages` instead of `calls`."""

    steps: Ints
    saved: Floats
    messages: int
    calls: int


def best_fusion(calls: StepCalls, latency_ns: float, exposed: Floats) -> Fused:
    """Try 1, 2, 3, 4, 6, 8, 12 ... messages; a step saves at most what it has of exposed transfer."""
    many = calls.wire.shape[1]
    ends = end_of_calls(calls, calls.wire)
    chosen = Fused(calls.steps, np.zeros(len(calls.steps)), many, many)
    powers = [1 << power for power in range(max(many - 1, 0).bit_length())]
    numbers = {number for power in powers for number in (power, power + power // 2)}
    for parts in sorted(number for number in numbers if number < many):
        saved = np.clip(ends - _fused(calls, parts, latency_ns), 0, exposed)
        if saved.sum() > chosen.saved.sum():
            chosen = Fused(calls.steps, saved, parts, many)
    return chosen


def end_of_calls(calls: StepCalls, wire: Ints | Floats) -> Floats:
    """Return when the last call of each step is through, were the wire held for `wire`."""
    if calls.blocking:  # what lies between calls stays as long as it is
        return np.asarray(calls.ready[:, 0] + (wire - calls.wire).sum(axis=1), np.float64)
    free: Floats = np.zeros(len(calls.steps))
    for call in range(wire.shape[1]):
        free = np.asarray(np.maximum(calls.ready[:, call], free) + wire[:, call], np.float64)
    return free


def _fused(calls: StepCalls, messages: int, latency_ns: float) -> Floats:
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
    moved = StepCalls(calls.steps, ready, wire.astype(np.int64), calls.nbytes, blocking=False)
    return end_of_calls(moved, wire)


def saved_by_faster_transfer(
    trace: Trace, calls: pl.DataFrame, steps: Ints, takes: Mapping[str, Floats], phases: Phases
) -> Floats:
    """Return by how many nanoseconds each of `steps` is shorter, as far as nothing hides the transfer.

    Args:
        trace: Whose calls these are.
        calls: Collectives (`transfers.CALL_COLUMNS`).
        steps: Which are changed, ascending.
        takes: What share of its time on the wire each call of the step then takes, by communicator;
            calls of others are as they were.
        phases: What each step has of transfer that nothing hides.
    """
    gains = {
        uid: gain
        for (uid,), part in calls.partition_by("communicator", as_dict=True).items()
        if uid in takes and (gain := _gain(part, steps, takes[uid])).any()
    }
    ranks = {grid.uid: grid.ranks for grid in trace.calls if grid.uid in gains}
    if all(len(members) == trace.workers.height for members in ranks.values()):
        total = sum(gains.values(), np.zeros(len(steps)))
        return np.minimum(total, exposed_transfer(phases, steps))
    return _gain_where_groups_meet(trace, gains, ranks, steps, phases)


def _gain(calls: pl.DataFrame, steps: Ints, takes: Floats) -> Floats:
    """Return by how much earlier the last call of a communicator is through, [step]."""
    total = np.zeros(len(steps))
    for same in StepCalls.of(calls):
        here = np.isin(same.steps, steps)
        rows = np.searchsorted(steps, same.steps[here])
        gain = end_of_calls(same, same.wire) - end_of_calls(
            same, same.wire * _transfer_factors(same, here, takes, rows)
        )
        total[rows] += np.maximum(gain[here], 0)
    return total


def _transfer_factors(calls: StepCalls, here: Flags, takes: Floats, rows: Indices) -> Floats:
    share = np.ones((len(calls.steps), 1))
    share[here, 0] = takes[rows]
    return share


_LATER: Final = 2.0  # times what is seen in the same step, where groups meet in the next one


def _gain_where_groups_meet(
    trace: Trace,
    gains: Mapping[str, Floats],
    ranks: Mapping[str, Ints],
    steps: Ints,
    phases: Phases,
) -> Floats:
    """Return by how much each step is shorter if some groups of ranks are through with calls earlier.

    A rank leaves the next meeting earlier by what its own calls gain and what it waits for others; all
    leave at once, so what the rank gains that gains least is the step's. They meet in this step, or in
    the one after it where that explains far more.
    """
    known = trace.workers.select("process", "rank").sort("process")
    own = np.zeros((len(steps), known.height))
    for uid, gain in gains.items():
        own[:, np.isin(known["rank"].to_numpy(), ranks[uid])] += gain[:, None]
    processes = known["process"].to_numpy().astype(np.int64)
    windows, after = (
        phases.windows_of(processes, np.broadcast_to((steps + by)[:, None], own.shape))
        for by in (0, 1)
    )
    transfer, wait = phases.of("transfer"), phases.of("wait")
    own = np.minimum(own, transfer[windows])
    same, later = (
        np.where(windows >= 0, own + wait[where] * (where >= 0), np.inf).min(axis=1)
        for where in (windows, after)
    )
    found = later if later.sum() > _LATER * same.sum() else same
    return np.asarray(np.where(np.isfinite(found), found, 0.0))


def hideable_transfer(trace: Trace, phases: Phases) -> int:
    """Return by how many nanoseconds hiding transfer would shorten the job, at best.

    In a step no rank can hide more than its backprop has room for, nor what must follow backprop: the
    last collective, or the pulls of new weights. A step is shorter only by what the rank gains that
    gains least.
    """
    room = np.maximum(phases.of("backprop") - phases.hidden_ns, 0)
    early = phases.of("transfer") * (1 - _pulled(trace)) - _last_transfers(trace, phases)
    gain = np.minimum(np.maximum(early, 0), room)
    least = np.full(len(phases.steps), np.inf)
    np.minimum.at(least, phases.step_places[phases.there], gain[phases.there])
    return int(least[np.isfinite(least)].sum())


def _last_transfers(trace: Trace, phases: Phases) -> Ints:
    """Return the transfer of the last collective of each step window; 0 where there is none."""
    transfer = np.zeros(len(phases.there), np.int64)
    latest = np.full(len(transfer) + 1, NEVER)  # the last one is of no window
    for calls, window in _by_window(trace, phases):
        np.maximum.at(latest, window.T.ravel(), calls.start_ns.T.ravel())
    for calls, window in _by_window(trace, phases):
        cells = np.nonzero((calls.start_ns == latest[window]) & (window >= 0))
        transfer[window[cells]] = (calls.end_ns - calls.start_ns - calls.wait_ns())[cells]
    return transfer


def _by_window(trace: Trace, phases: Phases) -> Iterator[tuple[CallGrid, Indices]]:
    """Yield calls, some at a time, and the step window of each cell; -1 where it is not over."""
    for grid in trace.calls:
        for _, some in grid.taken(np.flatnonzero(grid.last_ns != NEVER)).blocks():
            window = phases.windows_of(some.processes, distinct(some.step))
            yield some, np.where(some.there & (some.end_ns != FOREVER), window, -1)


def _pulled(trace: Trace) -> float:
    """Return the share of pulls in what workers exchange with parameter servers; 0 without any."""
    op = pl.col("op").cast(pl.String)
    moved = trace.requests.filter((pl.col("kind") == "ps") & op.is_in(["push", "pull"]))
    sums = moved.select(
        pulled=pl.col("bytes").filter(op == "pull").sum(), all=pl.col("bytes").sum()
    )
    pulled, everything = sums.row(0)
    return float(pulled / everything) if everything else 0.0
