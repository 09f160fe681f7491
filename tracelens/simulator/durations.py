"""How long everything would take: random draws, and the planted faults on top.

Each phase draws from its own stream, so that a scenario with and without a fault shares all random
numbers: their difference is the fault's true cost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.simulator.scenario import MILLISECOND

if TYPE_CHECKING:
    from tracelens.arrays import Floats, Indices, Ints
    from tracelens.simulator.scenario import Fault, Scenario


_STREAMS: Final = (
    *("spread", "common", "data", "forward", "backprop", "update", "checkpoint", "gc"),
    *("reduction", "aggregate", "apply", "exit", "wall", "ping_pong", "device", "device_clock"),
    "link",
)


def make_random(scenario: Scenario, name: str) -> np.random.Generator:
    """Return the random numbers of one purpose, of `_STREAMS`."""
    return np.random.default_rng([scenario.seed, _STREAMS.index(name)])


def draw_phase(scenario: Scenario, phase: str, mean_ms: float) -> Ints:
    """Draw the durations of a worker's phase of `mean_ms`, with its faults, ns, [step, rank]."""
    shape = (scenario.steps, scenario.ranks)
    rank_deviations = make_random(scenario, "spread").standard_normal(scenario.ranks)
    step_deviations = make_random(scenario, "common").standard_normal((scenario.steps, 1))
    noise = _draw_noise(scenario, phase, shape)
    durations_ms = (
        mean_ms
        * np.exp(scenario.spread * rank_deviations)
        * np.exp(scenario.common * step_deviations)
        * np.exp(scenario.noise * noise)
    )
    return _to_ns(_plant_faults(scenario, phase, durations_ms, list(range(scenario.ranks))))


def draw_pauses(scenario: Scenario) -> list[tuple[float, Ints]]:
    """Return each pause: the share of backprop (0..1) before it; its length, ns, [step, rank]."""
    drawn_pauses = []
    for fault in scenario.faults:
        if fault.pause_share is not None:
            pause_only = replace(scenario, faults=(replace(fault, factor=1.0),))
            zeros_ms = np.zeros((scenario.steps, scenario.ranks))
            pause_ms = _plant_faults(pause_only, "backprop", zeros_ms, list(range(scenario.ranks)))
            drawn_pauses.append((fault.pause_share, _to_ns(pause_ms)))
    return drawn_pauses


def draw_transfers(scenario: Scenario) -> Ints:
    """Draw the transfer time of each bucket once all ranks have come, ns, [step, bucket]."""
    shape = (scenario.steps, scenario.buckets)
    nbytes = np.array(scenario.bytes_of_buckets, np.float64)
    means_ms = scenario.message_ms + scenario.transfer_ms * nbytes / max(float(nbytes.mean()), 1.0)
    transfer_ms = means_ms * np.exp(scenario.noise * _draw_noise(scenario, "reduction", shape))
    transfer_ms = _plant_faults(scenario, "reduction", transfer_ms, ranks=None)
    if not scenario.hops:  # the slowest link sets the pace of all
        transfer_ms = transfer_ms * draw_link_slowdowns(scenario).max(axis=1, keepdims=True)
    return _to_ns(transfer_ms)


def draw_link_slowdowns(scenario: Scenario) -> Floats:
    """Draw the factor by which each rank's link is slower than usual, [step, rank]."""
    slowdowns = np.ones((scenario.steps, scenario.ranks))
    if scenario.hops:  # only these are slow by themselves; else the whole reduction is
        slowdowns = np.exp(scenario.noise * _draw_noise(scenario, "link", slowdowns.shape))
    return _plant_faults(scenario, "link", slowdowns, list(range(scenario.ranks)))


def draw_services(scenario: Scenario) -> Ints:
    """Draw the time in which a shard aggregates one worker's pushes of a step, ns, [step, shard]."""
    mean_ms = np.array(scenario.bytes_of_shards) / (scenario.aggregate_gbytes_per_s * 1e6)
    shape = (scenario.steps, scenario.shards)
    service_ms = mean_ms * np.exp(scenario.noise * _draw_noise(scenario, "aggregate", shape))
    return _to_ns(_plant_faults(scenario, "aggregate", service_ms, list(range(scenario.shards))))


def draw_ns_per_byte(scenario: Scenario) -> Floats:
    """Return the nanoseconds per byte of each shard's link, [step, shard]."""
    ns_per_byte = np.full((scenario.steps, scenario.shards), 1 / scenario.link_gbytes_per_s)
    return _plant_faults(scenario, "wire", ns_per_byte, list(range(scenario.shards)))


def draw_exit_skews(scenario: Scenario) -> Ints:
    """Draw the exit delay of each rank after a collective, ns, [step, bucket, rank]."""
    shape = (scenario.steps, scenario.buckets, scenario.ranks)
    relative_delays = make_random(scenario, "exit").lognormal(0.0, 0.5, shape)
    return np.rint(scenario.exit_skew_us * 1_000 * relative_delays).astype(np.int64)


def _draw_noise(scenario: Scenario, purpose: str, shape: tuple[int, int]) -> Floats:
    """Draw standard normal noise of a shape, [step, rank or bucket], correlated from step to step.

    `purpose` selects the stream of random numbers.
    """
    noise = make_random(scenario, purpose).standard_normal(shape)
    correlation = scenario.correlation
    if correlation:
        for step in range(1, shape[0]):
            noise[step] = correlation * noise[step - 1] + np.sqrt(1 - correlation**2) * noise[step]
    return noise


def _plant_faults(scenario: Scenario, phase: str, base: Floats, ranks: list[int] | None) -> Floats:
    """Apply the faults of a phase in place to `base`, durations in ms or factors, and return it.

    `base` is [step, rank or shard]; `ranks` are those (or the shards) of its columns, None where all
    ranks share each column, as of buckets.
    """
    for fault in scenario.faults:
        if fault.phase == phase:
            steps, factors = _find_steps(fault, scenario.steps)
            columns = _find_columns(fault, ranks, base.shape[1])
            cells = np.ix_(steps, np.array(columns, np.intp))
            base[cells] = base[cells] * factors[:, None] + fault.extra_ms
    return base


def _find_columns(fault: Fault, ranks: list[int] | None, column_count: int) -> list[int]:
    """Return the columns of the ranks (or shards) that a fault names; all if it names none."""
    if ranks is None or not fault.ranks:
        return list(range(column_count))
    return [ranks.index(rank) for rank in fault.ranks if rank in ranks]


def _find_steps(fault: Fault, step_count: int) -> tuple[Indices, Floats]:
    """Return the steps that a fault touches, and its factor in each of them, both [touched step]."""
    first, last = fault.steps or (0, step_count - 1)
    affected_steps = np.arange(max(first, 0), min(last, step_count - 1) + 1, fault.every)
    if not fault.ramp:
        return affected_steps, np.full(len(affected_steps), fault.factor)
    return affected_steps, np.linspace(1.0, fault.factor, len(affected_steps))


def _to_ns(milliseconds: Floats) -> Ints:
    return np.rint(milliseconds * MILLISECOND).astype(np.int64)
