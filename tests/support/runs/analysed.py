"""Simulated runs with their report: each is made once per version of the code."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from support.runs.cached import load_or_make

from tracelens.load import prepare
from tracelens.simulator.synthetic import Fault, Scenario, generate
from tracelens.verdicts.report import analyze

if TYPE_CHECKING:
    from tracelens.model.findings import Finding
    from tracelens.model.result import Report
    from tracelens.model.trace import Trace

FORWARD = Fault("forward", (2,), steps=(20, 49), factor=1.6)

# One of everything that analyses tell apart, and what is wrong with it (nothing: no fault).
RUNS: dict[str, tuple[Scenario, tuple[str, ...]]] = {
    "healthy": (Scenario(ranks=4, steps=60), ()),
    "healthy pair": (Scenario(ranks=2, steps=60), ()),
    "blocking": (Scenario(ranks=4, steps=60, overlap=False), ()),
    "devices": (Scenario(ranks=4, steps=60, on_device=True), ()),
    "noisy": (Scenario(ranks=8, steps=60, noise=0.3), ()),
    "alone": (Scenario(ranks=1, steps=40), ()),
    "short": (Scenario(ranks=4, steps=12, faults=(Fault("forward", (1,), factor=3),)), ()),
    "slow rank": (Scenario(ranks=4, steps=80, faults=(FORWARD,)), ("straggler",)),
    "stalls": (
        Scenario(ranks=8, steps=80, faults=(Fault("data", (3,), extra_ms=20, every=8),)),
        ("straggler",),
    ),
    "slow host": (
        Scenario(ranks=16, steps=60, faults=(Fault("backprop", (4, 5, 6, 7), factor=1.3),)),
        ("slow_host",),
    ),
    "pauses": (
        Scenario(ranks=4, steps=80, faults=(Fault("gc", (1,), extra_ms=20, every=7),)),
        ("gc_stall",),
    ),
    "checkpoints": (
        Scenario(ranks=4, steps=100, faults=(Fault("checkpoint", (0,), extra_ms=40, every=15),)),
        (),
    ),
    "all load slowly": (
        Scenario(ranks=4, steps=80, faults=(Fault("data", (), steps=(30, 49), extra_ms=9),)),
        ("data_stall",),
    ),
    "hot shard": (
        Scenario(ranks=4, steps=40, shards=3, shard_bytes=(24 << 20, 4 << 20, 4 << 20)),
        ("ps_hot_shard",),
    ),
    "even shards": (Scenario(ranks=4, steps=40, shards=3), ()),
}


@cache
def trace(scenario: Scenario) -> Trace:
    """Simulate a run and prepare its trace."""
    return load_or_make(f"trace {scenario}", lambda: prepare(generate(scenario)))


@cache
def report(scenario: Scenario) -> Report:
    """Simulate a run and analyze it."""
    return load_or_make(f"report {scenario}", lambda: analyze(trace(scenario)))


def faults(found: Report) -> list[Finding]:
    """Return the findings of a report that are faults."""
    return [finding for finding in found.findings if finding.category == "fault"]
