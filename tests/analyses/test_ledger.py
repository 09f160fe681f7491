"""Every loss is accounted for once: claimed by a finding, known, jitter, or unexplained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runs.analysed import RUNS, report

from tracelens.analyses import analyze
from tracelens.load import prepare
from tracelens.simulator.synthetic import Fault, Scenario, generate

if TYPE_CHECKING:
    from tracelens.model.result import Report
    from tracelens.model.verdict import Ledger

LEAST = -1e-9


def check(found: Report) -> Ledger:
    """Hold a ledger against what must be true of any."""
    ledger = found.ledger
    assert ledger
    assert ledger.useful + sum(loss.share for loss in ledger.losses) == pytest.approx(1, abs=1e-9)
    assert ledger.useful >= LEAST
    assert min((loss.share for loss in ledger.losses), default=0.0) >= LEAST
    for loss in ledger.losses:
        assert (loss.finding is not None) == (loss.cause == "finding")
        assert loss.finding is None or found.findings[loss.finding]
    return ledger


@pytest.mark.parametrize("run", RUNS)
def test_losses_add_up(run: str) -> None:
    """Of every sort of run."""
    check(report(RUNS[run][0]))


PHASES = st.sampled_from(["data", "forward", "backprop", "checkpoint", "gc"])
SCENARIOS = st.builds(
    Scenario,
    ranks=st.integers(1, 9),
    steps=st.integers(2, 70),
    noise=st.sampled_from([0.0, 0.02, 0.4]),
    shards=st.integers(0, 2),
    faults=st.builds(lambda phase: (Fault(phase, (0,), extra_ms=9),), PHASES),
    seed=st.integers(0, 9),
)


@settings(max_examples=15)
@given(scenario=SCENARIOS)
def test_any_run_adds_up(scenario: Scenario) -> None:
    """Whatever happens in it."""
    check(analyze(prepare(generate(scenario))))


def test_a_straggler_claims_what_others_wait() -> None:
    """What is left is jitter, and hardly anything unexplained."""
    found = report(RUNS["slow rank"][0])
    ledger = check(found)
    claimed = [loss for loss in ledger.losses if loss.cause == "finding"]
    assert [(loss.category, loss.finding) for loss in claimed] == [("wait", 0)]
    assert claimed[0].share == pytest.approx(found.findings[0].cost)
    assert ledger.unexplained < 0.01
    assert (ledger.awaited_rank, found.verdict.state) == (2, "faults")


@pytest.mark.parametrize("run", [name for name, (_, faults) in RUNS.items() if not faults])
def test_healthy_runs_have_hardly_anything_unexplained(run: str) -> None:
    """So they may be called healthy; those that are too short to judge, or of one rank, too."""
    found = report(RUNS[run][0])
    if run == "short":  # a rank takes three times as long, in too few steps to be sure
        assert found.verdict.state == "inconclusive"
        assert "most of it for rank 1 (forward" in found.verdict.why
    else:
        assert check(found).unexplained < 0.05
        assert found.verdict.state == "healthy"
