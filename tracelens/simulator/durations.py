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
    """Draw the duration of a worker's phase, [step, rank]."""
    ranks = range(scenario.ranks)
    shape = (scenario.steps, scenario.ranks)
    spread = np.exp(scenario.spread * stream(scenario, "spread").standard_normal(scenario.ranks))
    common = np.exp(
        scenario.common * stream(scenario, "common").standard_normal((scenario.steps, 1))
    )
    base = mean_ms * spread * common * np.exp(scenario.noise * _noise(scenario, name, shape))
    return _nanoseconds(_plant(scenario, name, base, list(ranks)))


def pauses(scenario: Scenario) -> list[tuple[float, Ints]]:
    """Return what share of backprop is done when a fault pauses, and for how long, [step, rank]."""
    found = []
    for fault in scenario.faults:
        if fault.at is not None:
            alone = replace(scenario, faults=(replace(fault, factor=1.0),))
            none = np.zeros((scenario.steps, scenario.ranks))
            lasting = _plant(alone, "backprop", none, list(range(scenario.ranks)))
            found.append((fault.at, _nanoseconds(lasting)))
    return found


def transfers(scenario: Scenario) -> Ints:
    """Draw how long each bucket is on the wire once all ranks have come, [step, bucket]."""
    shape = (scenario.steps, scenario.buckets)
    sizes = np.array(scenario.bytes_of_buckets, np.float64)
    means = scenario.message_ms + scenario.transfer_ms * sizes / max(float(sizes.mean()), 1.0)
    base = means * np.exp(scenario.noise * _noise(scenario, "reduction", shape))
    planted = _plant(scenario, "reduction", base, None)
    if not scenario.hops:
        planted = planted * links(scenario).max(axis=1, keepdims=True)
    return _nanoseconds(planted)


def links(scenario: Scenario) -> Floats:
    """Draw how many times as long each rank's link takes as it should, [step, rank]."""
    shape = (scenario.steps, scenario.ranks)
    noise = (
        np.exp(scenario.noise * _noise(scenario, "link", shape))
        if scenario.hops
        else np.ones(shape)
    )
    return _plant(scenario, "link", noise, list(range(scenario.ranks)))


def services(scenario: Scenario) -> Ints:
    """Draw how long a shard computes on one worker's push, [step, shard]."""
    mean = np.array(scenario.bytes_of_shards) / (scenario.aggregate_gbytes_per_s * 1e6)
    shape = (scenario.steps, scenario.shards)
    base = mean * np.exp(scenario.noise * _noise(scenario, "aggregate", shape))
    return _nanoseconds(_plant(scenario, "aggregate", base, list(range(scenario.shards))))


def wires(scenario: Scenario) -> Floats:
    """Return how many nanoseconds each shard's link needs for a byte, [step, shard]."""
    base = np.full((scenario.steps, scenario.shards), 1 / scenario.link_gbytes_per_s)
    return _plant(scenario, "wire", base, list(range(scenario.shards)))


def exit_skews(scenario: Scenario) -> Ints:
    """Draw how much later than possible each rank leaves a collective, [step, bucket, rank]."""
    shape = (scenario.steps, scenario.buckets, scenario.ranks)
    draw = stream(scenario, "exit").lognormal(0.0, 0.5, shape)
    return np.rint(scenario.exit_skew_us * 1_000 * draw).astype(np.int64)


def _noise(scenario: Scenario, name: str, shape: tuple[int, int]) -> Floats:
    """Draw standard normal noise with the scenario's correlation from step to step."""
    fresh = stream(scenario, name).standard_normal(shape)
    rho = scenario.correlation
    if rho:
        for step in range(1, shape[0]):
            fresh[step] = rho * fresh[step - 1] + np.sqrt(1 - rho**2) * fresh[step]
    return fresh


def _plant(scenario: Scenario, name: str, base: Floats, columns: list[int] | None) -> Floats:
    """Apply the faults of one phase; `columns` are the ranks (or shards), null where all share."""
    for fault in scenario.faults:
        if fault.phase == name:
            steps, factors = _hit(fault, scenario.steps)
            chosen = _columns(fault, columns, base.shape[1])
            cells = np.ix_(steps, np.array(chosen, np.intp))
            base[cells] = base[cells] * factors[:, None] + fault.extra_ms
    return base


def _columns(fault: Fault, columns: list[int] | None, width: int) -> list[int]:
    if columns is None or not fault.ranks:
        return list(range(width))
    return [columns.index(rank) for rank in fault.ranks if rank in columns]


def _hit(fault: Fault, steps: int) -> tuple[Indices, Floats]:
    """Return the steps that a fault touches, and by what factor."""
    first, last = fault.steps or (0, steps - 1)
    touched = np.arange(max(first, 0), min(last, steps - 1) + 1, fault.every)
    if not fault.ramp:
        return touched, np.full(len(touched), fault.factor)
    return touched, np.linspace(1.0, fault.factor, len(touched))


def _nanoseconds(milliseconds: Floats) -> Ints:
    return np.rint(milliseconds * MILLISECOND).astype(np.int64)
