"""What a report comes to in four lines: a fault, a bottleneck, a healthy run, or what is missing."""

from dataclasses import replace

import pytest
from support.runs.analysed import RUNS, report, trace
from support.runs.traces import call, span, trace_of

from tracelens.accounting import phases
from tracelens.facts import Facts
from tracelens.load import prepare
from tracelens.model.finding_kinds import KINDS
from tracelens.model.findings import Finding
from tracelens.model.verdict import Ledger, Loss, Verdict
from tracelens.verdicts import conclusion
from tracelens.verdicts.report import analyze

MS = 10**6


def conclude_losses(
    *losses: Loss, useful: float = 0.5, findings: tuple[Finding, ...] = ()
) -> Verdict:
    """Return the verdict on a healthy run with these losses."""
    run = trace(RUNS["healthy"][0])
    summary = report(RUNS["healthy"][0]).summary
    ledger = Ledger(useful, losses)
    return conclusion.conclude(
        Facts(run, phases.run(run)), summary=summary, findings=findings, ledger=ledger, notes=()
    )


def test_a_fault_is_named_with_its_severity() -> None:
    """With kind, rank, phase, the difference to its peers in milliseconds, and a page of its own."""
    verdict = report(RUNS["slow rank"][0]).verdict
    assert (verdict.state, verdict.kind) == ("fault", "straggler")
    assert verdict.headline == "STRAGGLER rank 2, forward \N{MIDDLE DOT} moderate"
    assert verdict.why.startswith("rank 2: 8.0")
    assert "the others: 5.0" in verdict.why


@pytest.mark.parametrize(
    ("category", "bound"),
    [
        ("data", "data loading"),
        ("transfer", "communication"),
        ("idle", "idle time"),
        ("gc", "garbage collection"),
        ("outside", "time outside steps"),
        ("ps_queue", "parameter servers"),
    ],
)
@pytest.mark.parametrize("share", [0.5, 0.1])
def test_a_run_that_loses_a_tenth_to_one_cause_is_bound_by_it(
    category: str, bound: str, share: float
) -> None:
    """It has no fault, but is not called healthy; the line below says what to do."""
    verdict = conclude_losses(
        Loss("data", 0.02, "known"), Loss(category, share, "known"), useful=0.98 - share
    )
    in_all = share + 0.02 * (category == "data")
    assert verdict.state == "bottleneck"
    assert verdict.headline == f"BOUND BY {bound}: {in_all:.0%} of the time".replace("%", " %")
    assert verdict.why.startswith(bound[0].upper() + bound[1:])
    assert "Nothing to fix" not in verdict.action


def test_a_run_that_loses_little_to_several_causes_is_bound_by_the_largest() -> None:
    """Of a healthy run nearly all of the time is useful."""
    little = [Loss(name, 0.06, "known") for name in ("data", "gc", "checkpoint")]
    found = conclude_losses(*little, Loss("transfer", 0.07, "known"), useful=0.75)
    assert found.headline == (
        "BOUND BY several causes, most of it communication (7.0 %): 25 % of the time"
    )


def test_a_healthy_run_says_how_much_is_useful() -> None:
    """The lines below name its losses."""
    verdict = conclude_losses(
        Loss("transfer", 0.08, "known"), Loss("idle", 0.001, "known"), useful=0.919
    )
    assert (verdict.state, verdict.headline) == ("healthy", "HEALTHY: 92 % of the time is useful")
    assert verdict.why.endswith("the largest: 8.0 % exposed communication.")
    assert "Nothing to fix" in verdict.action


@pytest.mark.parametrize(
    ("kind", "saving", "action"),
    [
        (
            "update_gap",
            0.072,
            "Nothing must be fixed; up to 7.2 % of the job could be saved. "
            + KINDS["update_gap"].action,
        ),
        (
            "ps_cpu_bound",
            None,
            "Nothing must be fixed; an unknown share of the job could be saved.",
        ),
        ("update_gap", 0.0, "Nothing to fix: compare"),
        ("clock_jump", None, "Nothing to fix: compare"),
    ],
)
def test_nothing_to_fix_is_only_said_where_nothing_is_to_be_gained(
    kind: str, saving: float | None, action: str
) -> None:
    """A healthy run with a small opportunity has that opportunity's advice as its next step."""
    small = Finding(kind=kind, category="opportunity", sentence="Gaps.", saving=saving)
    less = Finding(kind="small_messages", category="opportunity", sentence="Many.", saving=0.0)
    found = conclude_losses(Loss("transfer", 0.05, "known"), useful=0.95, findings=(less, small))
    assert found.state == "healthy"
    assert found.action.startswith(action)


def test_a_bottleneck_names_what_would_help() -> None:
    """The finding that explains most of it, with what it saves."""
    small = Finding(kind="small_messages", category="opportunity", sentence="Many.", saving=0.2)
    verdict = conclude_losses(Loss("transfer", 0.6, "finding", 0), useful=0.4, findings=(small,))
    assert verdict.headline == (
        "BOUND BY communication: 60 % of the time \N{MIDDLE DOT} small messages, up to 20 % to gain"
    )
    assert verdict.kind == "small_messages"


@pytest.mark.parametrize(("saving", "state"), [(0.099, "healthy"), (0.1, "bottleneck")])
def test_no_run_that_could_be_a_tenth_shorter_is_healthy(saving: float, state: str) -> None:
    gaps = Finding(kind="load_imbalance", category="opportunity", sentence="Uneven.", saving=saving)
    assert (
        conclude_losses(Loss("wait", 0.01, "jitter"), useful=0.99, findings=(gaps,)).state == state
    )


@pytest.mark.parametrize(
    ("saving", "state"), [(0.009, "healthy"), (0.01, "fault"), (None, "fault")]
)
def test_a_fault_without_effect_is_no_headline(saving: float | None, state: str) -> None:
    """It stays a finding."""
    late = Finding(
        kind="straggler", category="fault", sentence="Rank 1.", saving=saving, ranks=(1,)
    )
    assert conclude_losses(useful=1.0, findings=(late,)).state == state


@pytest.mark.parametrize(("gain", "is_named"), [(0.27, True), (0.09, False), (0.05, False)])
def test_a_small_fault_does_not_hide_a_larger_gain(gain: float, *, is_named: bool) -> None:
    """An opportunity that saves much more is named in the line below the fault."""
    fault = Finding(
        kind="slow_all", category="fault", sentence="All slow.", saving=0.046, ranks=(0, 1)
    )
    opportunity = Finding(
        kind="repeated_reductions", category="opportunity", sentence="8 times.", saving=gain
    )
    verdict = conclude_losses(Loss("transfer", 0.3, "known"), findings=(fault, opportunity))
    assert verdict.state == "fault"
    named = "More can be gained elsewhere: repeated reductions, up to 27 % of the job."
    assert verdict.why.endswith(named) == is_named


@pytest.mark.parametrize(("share", "state"), [(0.099, "healthy"), (0.1, "inconclusive")])
def test_code_that_no_span_covers_is_not_useful(share: float, state: str) -> None:
    """Where phases are known, a tenth of it keeps a run from being judged."""
    found = conclude_losses(Loss("uninstrumented", share, "uncovered"), useful=1 - share)
    assert found.state == state
    assert ("is uninstrumented" in found.headline) == (state == "inconclusive")


def test_a_larger_known_cause_comes_before_what_is_not_known() -> None:
    verdict = conclude_losses(
        Loss("transfer", 0.6, "known"), Loss("wait", 0.06, "unexplained"), useful=0.34
    )
    assert verdict.state == "bottleneck"


@pytest.mark.parametrize(("share", "state"), [(0.049, "healthy"), (0.05, "inconclusive")])
def test_what_nothing_explains_is_at_most_a_twentieth(share: float, state: str) -> None:
    """In a healthy run."""
    assert conclude_losses(Loss("wait", share, "unexplained"), useful=1 - share).state == state


def test_what_is_missing_depends_on_what_is_lost() -> None:
    """Spans do not show which server keeps requests waiting."""
    assert "PS shard" in conclude_losses(Loss("ps_queue", 0.3, "unexplained")).action
    assert "tl.span" in conclude_losses(Loss("wait", 0.3, "unexplained")).action


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
