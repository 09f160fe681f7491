"""What a report comes to in four lines: faults, a healthy run, or what is missing to say so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.runs.analysed import RUNS, report, trace
from support.runs.traces import call, span, trace_of

from tracelens.accounting import phases
from tracelens.analyses import analyze, verdict
from tracelens.load import prepare
from tracelens.model.verdict import Ledger, Loss, Verdict

MS = 10**6


def concluded(*losses: Loss, useful: float = 0.5) -> Verdict:
    """Return the verdict on a healthy run of which nothing but its losses is known."""
    run = trace(RUNS["healthy"][0])
    summary = report(RUNS["healthy"][0]).summary
    ledger = Ledger(useful, losses)
    return verdict.conclude(
        run, phases.run(run), summary=summary, findings=(), ledger=ledger, notes=()
    )


def test_a_fault_is_named_with_its_severity() -> None:
    """By kind, rank and phase, beside its peers in milliseconds, with a page of its own."""
    found = report(RUNS["slow rank"][0]).verdict
    assert (found.state, found.kind) == ("faults", "straggler")
    assert found.headline == "STRAGGLER rank 2, forward \N{MIDDLE DOT} moderate"
    assert found.why.startswith("rank 2: 8.0")
    assert "the others: 5.0" in found.why


@pytest.mark.parametrize(
    ("category", "bound"),
    [("data", "data loading"), ("transfer", "communication"), ("idle", "idle time")],
)
def test_a_healthy_run_says_what_bounds_it(category: str, bound: str) -> None:
    """Whatever takes most of its time."""
    found = concluded(Loss(category, 0.6, "known"), useful=0.4)
    assert (found.state, found.headline) == ("healthy", f"HEALTHY: no fault; bound by {bound}")


@pytest.mark.parametrize(("share", "state"), [(0.049, "healthy"), (0.05, "inconclusive")])
def test_what_nothing_explains_is_at_most_a_twentieth(share: float, state: str) -> None:
    """Of a healthy run."""
    assert concluded(Loss("wait", share, "unexplained"), useful=1 - share).state == state


def test_what_is_missing_depends_on_what_is_lost() -> None:
    """Spans do not tell which server keeps requests waiting."""
    assert "PS shard" in concluded(Loss("ps_queue", 0.3, "unexplained")).action
    assert "tl.span" in concluded(Loss("wait", 0.3, "unexplained")).action


def test_ranks_that_share_no_call_are_not_judged() -> None:
    """Nothing says whether one waits for another."""
    rows = [
        span(rank, kind, at, at + 10 * MS, step=step)
        for rank in range(2)
        for step, at in enumerate(range(0, 400 * MS, 10 * MS))
        for kind in ("step", "forward")
    ]
    found = analyze(prepare(trace_of(rows, ranks=2))).verdict
    assert (found.state, found.headline) == (
        "inconclusive",
        "INCONCLUSIVE: no communication was recorded",
    )


def test_a_run_without_steps_is_not_judged() -> None:
    """Its ranks may have recorded calls of other communicators only."""
    rows = [call(rank, 0, 0, 10) | {"step": -1} for rank in range(2)]
    run = prepare(trace_of(rows, ranks=2))
    found = analyze(replace(run, steps=run.steps.clear(), outlines=None)).verdict
    assert found.headline == "INCONCLUSIVE: no steps"
