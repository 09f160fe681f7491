"""Open runs for tests of the dashboard: simulated traces with a report written by hand."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from support.runs.verdicts import verdict_of

from tracelens.accounting import phases
from tracelens.analyses import critical_path, imbalance
from tracelens.analyses.servers import shards
from tracelens.facts import Facts
from tracelens.load import prepare
from tracelens.model.findings import Finding
from tracelens.model.result import Efficiency, Report, Share, Summary
from tracelens.model.verdict import Ledger, Loss
from tracelens.simulator.synthetic import Fault, Scenario, generate
from tracelens_dashboard.runs.store import Store

if TYPE_CHECKING:
    from tracelens.model.trace import Trace

SLOW_RANK = Scenario(
    ranks=4, steps=60, faults=(Fault("backprop", (2,), steps=(20, 39), factor=1.6),)
)
SHARDED = Scenario(ranks=4, steps=20, shards=3, shard_bytes=(24 << 20, 4 << 20, 4 << 20))
DEVICES = Scenario(ranks=2, steps=20, on_device=True)
ALONE = Scenario(ranks=1, steps=10)

LATE = Finding(
    kind="straggler",
    category="fault",
    sentence="Rank 2 takes longer for backprop in steps 20-39.",
    saving=0.21,
    ranks=(2,),
    phase="backprop",
    steps=(20, 39),
)
HOT = Finding(
    kind="ps_hot_shard",
    category="fault",
    sentence="Shard 0 holds 75 % of the bytes.",
    saving=0.4,
    shards=(0,),
)


def report_of(trace: Trace, *findings: Finding) -> Report:
    """Write a report by hand around the real phases of a trace."""
    phase_table = phases.run(trace)
    summary = Summary(
        ranks_expected=trace.expected_ranks,
        ranks_seen=trace.processes.height,
        shards=trace.shards.height,
        steps=trace.steps["step"].n_unique(),
        spans=1000,
        dropped={},
    )
    lost = (Share("wait", 0.2), Share("transfer", 0.1), Share("data", 0.0001))
    achieved = 1 - sum(part.share for part in lost)
    return Report(
        verdict=verdict_of(*findings),
        summary=summary,
        clock=trace.alignment,
        efficiency=Efficiency(
            achieved=achieved, waterfall=lost, pop={}, job_ns=10**9, uninstrumented=0.0
        ),
        ledger=Ledger(achieved, (Loss("wait", 1 - achieved, "known"),)),
        findings=findings,
        notes=trace.notes,
        results={
            "phases": phase_table,
            "shards": shards.run(Facts(trace, phase_table)),
            "imbalance": imbalance.run(Facts(trace, phase_table)),
            "critical_path": critical_path.run(Facts(trace, phase_table)),
        },
    )


@cache
def traced(scenario: Scenario) -> Trace:
    """Simulate a run."""
    return prepare(generate(scenario))


def open_run(scenario: Scenario, *findings: Finding) -> Store:
    """Simulate a run and open it, with findings of one's own."""
    trace = traced(scenario)
    return Store.from_trace(trace, report_of(trace, *findings))


@cache
def slow_rank() -> Store:
    """Return a run whose rank 2 is slow in backprop of steps 20-39."""
    return open_run(SLOW_RANK, LATE)


@cache
def sharded() -> Store:
    """Return a run with parameter servers, the first of which carries most bytes."""
    return open_run(SHARDED, HOT)


@cache
def alone() -> Store:
    """Return a run of a single rank."""
    return open_run(ALONE)


@cache
def devices() -> Store:
    """Return a run whose work was done on devices."""
    return open_run(DEVICES)
