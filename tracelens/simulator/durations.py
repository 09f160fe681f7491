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
    "spread",
    "common",
    "data",
    "forward",
    "backprop",
    "update",
    "checkpoint",
    "gc",
    "reduction",
    "aggregate",
    "apply",
    "exit",
    "wall",
    "ping_pong",
    "device",
    "device_clock",
    "link",
)


def stream(scenario: Scenario, name: str) -> np.random.Generator:
    """Return the random numbers of one purpose."""
    return np.random.default_rng([scenario.seed, _STREAMS.index(name)])


def phase(scenario: Scenario, name: str, mean_ms: float) -> Ints:
    """Draw the duration of a worker's phase, ns, [step, rank]."""
    ranks = range(scenario.ranks)
    shape = (scenario.steps, scenario.ranks)
    rank_factors = np.exp(
        scenario.spread * stream(scenario, "spread").standard_normal(scenario.ranks)
    )
    step_factors = np.exp(
        scenario.common * stream(scenario, "common").standard_normal((scenario.steps, 1))
    )
    duration_ms = (
        mean_ms
        * rank_factors
        * step_factors
        * np.exp(scenario.noise * _draw_noise(scenario, name, shape))
    )
    return _to_ns(_plant_faults(scenario, name, duration_ms, list(ranks)))


def pauses(scenario: Scenario) -> list[tuple[float, Ints]]:
    """Return each pause: the share of backprop before it, and its length, ns, [step, rank]."""
    pauses_by_share = []
    for fault in scenario.faults:
        if fault.at is not None:
            pause_only = replace(scenario, faults=(replace(fault, factor=1.0),))
            zeros_ms = np.zeros((scenario.steps, scenario.ranks))
            pause_ms = _plant_faults(pause_only, "backprop", zeros_ms, list(range(scenario.ranks)))
            pauses_by_share.append((fault.at, _to_ns(pause_ms)))
    return pauses_by_share


def transfers(scenario: Scenario) -> Ints:
    """Draw the transfer time of each bucket once all ranks have come, ns, [step, bucket]."""
    shape = (scenario.steps, scenario.buckets)
    sizes = np.array(scenario.bytes_of_buckets, np.float64)
    means_ms = scenario.message_ms + scenario.transfer_ms * sizes / max(float(sizes.mean()), 1.0)
    transfer_ms = means_ms * np.exp(scenario.noise * _draw_noise(scenario, "reduction", shape))
    planted_ms = _plant_faults(scenario, "reduction", transfer_ms, None)
    if not scenario.hops:
        planted_ms = planted_ms * links(scenario).max(axis=1, keepdims=True)
    return _to_ns(planted_ms)


def links(scenario: Scenario) -> Floats:
    """Draw the slowdown factor of each rank's link, [step, rank]."""
    shape = (scenario.steps, scenario.ranks)
    noise = (
        np.exp(scenario.noise * _draw_noise(scenario, "link", shape))
        if scenario.hops
        else np.ones(shape)
    )
    return _plant_faults(scenario, "link", noise, list(range(scenario.ranks)))


def services(scenario: Scenario) -> Ints:
    """Draw the time in which a shard aggregates one worker's push, ns, [step, shard]."""
    mean_ms = np.array(scenario.bytes_of_shards) / (scenario.aggregate_gbytes_per_s * 1e6)
    shape = (scenario.steps, scenario.shards)
    service_ms = mean_ms * np.exp(scenario.noise * _draw_noise(scenario, "aggregate", shape))
    return _to_ns(_plant_faults(scenario, "aggregate", service_ms, list(range(scenario.shards))))


def wires(scenario: Scenario) -> Floats:
    """Return the nanoseconds per byte of each shard's link, [step, shard]."""
    base = np.full((scenario.steps, scenario.shards), 1 / scenario.link_gbytes_per_s)
    return _plant_faults(scenario, "wire", base, list(range(scenario.shards)))


def exit_skews(scenario: Scenario) -> Ints:
    """Draw the exit delay of each rank after a collective, ns, [step, bucket, rank]."""
    shape = (scenario.steps, scenario.buckets, scenario.ranks)
    draw = stream(scenario, "exit").lognormal(0.0, 0.5, shape)
    return np.rint(scenario.exit_skew_us * 1_000 * draw).astype(np.int64)


def _draw_noise(scenario: Scenario, name: str, shape: tuple[int, int]) -> Floats:
    """Draw standard normal noise with the scenario's correlation from step to step."""
    noise = stream(scenario, name).standard_normal(shape)
    rho = scenario.correlation
    if rho:
        for step in range(1, shape[0]):
            noise[step] = rho * noise[step - 1] + np.sqrt(1 - rho**2) * noise[step]
    return noise


def _plant_faults(scenario: Scenario, name: str, base: Floats, columns: list[int] | None) -> Floats:
    """Apply the faults of one phase; `columns` are the ranks (or shards), null where all share."""
    for fault in scenario.faults:
        if fault.phase == name:
            steps, factors = _find_steps(fault, scenario.steps)
            chosen = _find_columns(fault, columns, base.shape[1])
            cells = np.ix_(steps, np.array(chosen, np.intp))
            base[cells] = base[cells] * factors[:, None] + fault.extra_ms
    return base


def _find_columns(fault: Fault, columns: list[int] | None, width: int) -> list[int]:
    if columns is None or not fault.ranks:
        return list(range(width))
    return [columns.index(rank) for rank in fault.ranks if rank in columns]


def _find_steps(fault: Fault, steps: int) -> tuple[Indices, Floats]:
    """Return the steps that a fault touches, and by what factor."""
    first, last = fault.steps or (0, steps - 1)
    touched = np.arange(max(first, 0), min(last, steps - 1) + 1, fault.every)
    if not fault.ramp:
        return touched, np.full(len(touched), fault.factor)
    return touched, np.linspace(1.0, fault.factor, len(touched))


def _to_ns(milliseconds: Floats) -> Ints:
    return np.rint(milliseconds * MILLISECOND).astype(np.int64)
