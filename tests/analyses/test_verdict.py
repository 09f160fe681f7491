"""What a report comes to in four lines: faults, a healthy run, or what is missing to say so."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.runs.analysed import RUNS, report, trace
from support.runs.traces import call, span, trace_of

from tracelens.accounting import phases
from tracelens.facts import Facts
from tracelens.load import prepare
from tracelens.model.findings import Finding
from tracelens.model.verdict import Ledger, Loss, Verdict, lead_of
from tracelens.verdicts import conclusion
from tracelens.verdicts.report import analyze

if TYPE_CHECKING:
    from tracelens.model.verdict import State

MS = 10**6


def concluded(*losses: Loss, useful: float = 0.5, findings: tuple[Finding, ...] = ()) -> Verdict:
    """Return the verdict on a healthy run of which nothing but its losses is known."""
    run = trace(RUNS["healthy"][0])
    summary = report(RUNS["healthy"][0]).summary
    ledger = Ledger(useful, losses)
    return conclusion.conclude(
        Facts(run, phases.run(run)), summary=summary, findings=findings, ledger=ledger, notes=()
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
    [
        ("data", "data loading"),
        ("transfer", "communication"),
        ("idle", "idle time"),
        ("gc", "garbage collection"),
        ("outside", "time outside steps"),
    ],
)
def test_a_run_that_loses_most_of_its_time_says_to_what(category: str, bound: str) -> None:
    """It has no fault, but is not called healthy; compute does not bind it, though it is the most."""
    found = concluded(Loss("data", 0.02, "known"), Loss(category, 0.5, "known"), useful=0.48)
    assert (found.state, found.headline) == (
        "healthy",
        f"NO FAULT: 52 % of the time is lost, bound by {bound}",
    )
    assert f"% {bound}" in found.why


def test_a_healthy_run_is_bound_by_compute() -> None:
    """Which it spends most of its time on; what it loses stands below."""
    found = concluded(Loss("transfer", 0.3, "known"), Loss("idle", 0.001, "known"), useful=0.699)
    assert found.headline == "HEALTHY: no fault; bound by compute"
    assert found.why == "70 % of the time is computation, 30 % communication; 0.0 % unexplained."


@pytest.mark.parametrize(("saving", "named"), [(0.099, "NO FAULT: "), (0.1, "SMALL MESSAGES")])
def test_a_headline_names_what_would_help_much(saving: float, named: str) -> None:
    """What saves little of a large loss is in the line below."""
    small = Finding(kind="small_messages", category="opportunity", sentence="Many.", saving=saving)
    found = concluded(Loss("transfer", 0.6, "known"), useful=0.4, findings=(small,))
    assert found.headline.startswith(named)
    assert found.headline.endswith("60 % of the time is lost, bound by communication")
    assert "Small messages: up to" in found.action


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


@pytest.mark.parametrize(
    ("state", "useful", "lead"),
    [
        ("faults", 0.9, "fault"),
        ("healthy", 0.51, "healthy"),
        ("healthy", 0.5, "opportunity"),
        ("inconclusive", 0.2, "inconclusive"),
    ],
)
def test_no_run_that_loses_most_of_its_time_looks_healthy(
    state: State, useful: float, lead: str
) -> None:
    """What a verdict names first gives it its colour."""
    found = Verdict(state, "", "", "", "")
    assert lead_of(found, Ledger(useful, (Loss("wait", 1 - useful, "known"),))) == lead
