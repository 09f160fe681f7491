"""A gate fails on what is both beyond its limit and beyond noise, and says why."""

from dataclasses import replace

import numpy as np
import pytest
from support.web.stores import HOT, LATE

from tracelens.comparison import RunMetrics, compare
from tracelens.comparison.gates import Outcome, judge, parse
from tracelens.comparison.messages import name_verdict, write_headline
from tracelens.errors import InvalidArgument, UnusableInput
from tracelens.model.findings import Finding

MS = 1e6


def run(
    factor: float = 1.0, *, seed: int = 0, count: int = 200, noise: float = 0.02, **more: Finding
) -> RunMetrics:
    """Steps of 10 ms, 2 ms of them data loading, that last `factor` times as long."""
    random = np.random.default_rng(seed)
    lengths = 10 * MS * factor * np.exp(noise * random.standard_normal(count))
    metrics = {
        "step_time": lengths,
        "mean_step_time": lengths,
        "efficiency": np.full(count, 0.8),
        "phase:data": 0.2 * lengths,
    }
    return RunMetrics("run", 4, 0, count, metrics, tuple(more.values()))


def outcome(condition: str, new: RunMetrics, *baselines: RunMetrics) -> Outcome:
    first = baselines or (run(seed=1), run(seed=2), run(seed=3))
    return judge([parse(condition)], compare(first, new))[0]


@pytest.mark.parametrize(
    ("condition", "factor", "failed"),
    [
        ("step_time>+3%", 1.06, True),
        ("step_time>3%", 1.06, True),
        ("step_time>+10%", 1.06, False),
        ("step_time>+3%", 1.0, False),
        ("step_time>+3%", 0.8, False),
        ("step_time<-3%", 0.8, True),
        ("step_time>0%", 1.06, True),
        ("phase:data>+0.05ms", 1.06, True),
        ("phase:data>+1ms", 1.06, False),
        ("efficiency<-2%", 1.06, False),
        ("exposed>+5%", 1.06, False),
    ],
)
def test_the_limit_decides(condition: str, factor: float, *, failed: bool) -> None:
    """In the direction that was named, of the baseline or in ns."""
    assert outcome(condition, run(factor, seed=7)).has_failed is failed


def test_noise_alone_fails_nothing() -> None:
    """Beyond the limit, but not beyond what the baselines differ by: the reason says so."""
    noisy = [run(factor, seed=k) for k, factor in enumerate((0.85, 1.0, 1.15))]
    found = outcome("step_time>+3%", run(1.1, seed=7), *noisy)
    assert not found.has_failed
    assert "equal runs may differ so far" in found.reason


def test_what_was_nothing_before_is_beyond_any_share() -> None:
    before = run(seed=1)
    metrics = {k: v for k, v in before.values_by_metric.items() if k != "phase:data"}
    assert outcome(
        "phase:data>+50%", run(seed=2), replace(before, values_by_metric=metrics)
    ).has_failed


def test_gates_share_their_risk() -> None:
    """With ten gates each needs ten times the evidence (Holm)."""
    found = compare([run(seed=1)], run(1.005, seed=2))
    alone = judge([parse("step_time>0%")], found)[0].p_value
    shared = judge([parse("step_time>0%"), *[parse("phase:data>+90%")] * 9], found)[0].p_value
    assert alone is not None
    assert shared == pytest.approx(min(1, 10 * alone))


@pytest.mark.parametrize(
    ("condition", "failed"),
    [
        ("straggler", True),
        ("faults", True),
        ("ps_hot_shard", False),
        ("straggler>10%", True),
        ("straggler>30%", False),
    ],
)
def test_findings_that_no_baseline_has(condition: str, *, failed: bool) -> None:
    """By kind, by category, and by what fixing them would save (21 % here)."""
    assert outcome(condition, run(a=LATE), run(seed=1), run(seed=2)).has_failed is failed


def test_a_known_finding_fails_nothing() -> None:
    """Unless it costs more than before, by more than the limit."""
    assert not outcome("faults", run(a=LATE, b=HOT), run(a=LATE), run(b=HOT)).has_failed
    worse = replace(LATE, saving=0.5)
    assert outcome("straggler>10%", run(a=worse), run(a=LATE)).has_failed


@pytest.mark.parametrize(
    ("condition", "part"),
    [
        ("step_time", "needs a limit"),
        ("step_time>", "expected METRIC>+N%"),
        ("step_time>+3", "expected METRIC>+N%"),
        ("step_time>-3%", "goes with an increase"),
        ("step_time<3%", "goes with an increase"),
        ("steptime>3%", "no metric or kind of finding 'steptime'"),
        ("phase:lunch>3%", "no metric or kind of finding 'phase:lunch'"),
        ("straggler<2%", "share of the job"),
        ("straggler>2ms", "share of the job"),
        ("efficiency<-2ms", "has no unit"),
        ("", "expected METRIC>+N%"),
    ],
)
def test_a_wrong_condition_is_one_sentence(condition: str, part: str) -> None:
    """It names the wrong part and the expected form."""
    with pytest.raises(InvalidArgument) as wrong:
        parse(condition)
    assert part in str(wrong.value)
    assert "\n" not in str(wrong.value)


def test_what_cannot_be_judged_does_not_pass() -> None:
    """No steps, or a few steps and one baseline: an error, not a gate that passes."""
    with pytest.raises(UnusableInput, match="no steps"):
        outcome("step_time>+3%", replace(run(), step_count=0, values_by_metric={}))
    with pytest.raises(UnusableInput, match="several baselines, or 30 steps"):
        outcome("step_time>+3%", run(count=10), run(count=10))
    few = [run(count=10, seed=seed) for seed in range(3)]
    assert outcome("step_time>+3%", run(1.2, count=10, seed=9), *few).has_failed


@pytest.mark.parametrize(
    ("finding", "said"),
    [
        (LATE, "WORSE"),
        (replace(LATE, saving=0.05), "NO CLEAR CHANGE"),
        (replace(LATE, kind="truncated_trace", saving=None), "NO CLEAR CHANGE"),
        (replace(LATE, kind="hang", saving=None), "WORSE"),
    ],
    ids=["critical", "moderate", "a limit of the trace", "a hang"],
)
def test_a_new_critical_fault_is_the_headline(finding: Finding, said: str) -> None:
    """Even if the step takes as long as before; a limit of the trace is no fault."""
    found = compare((run(seed=1), run(seed=2), run(seed=3)), run(seed=4, a=finding))
    assert name_verdict(found) == said
    assert ("New: " in write_headline(found)) == (said == "WORSE")


def test_no_gate_fails_on_what_the_headline_calls_no_change() -> None:
    """Both judge a change in either direction."""
    for seed in range(40):
        first = (run(seed=1, noise=0.3), run(seed=2, noise=0.3), run(1.1, seed=3, noise=0.3))
        found = compare(first, run(1.15, seed=seed, noise=0.3))
        (gate,) = judge([parse("step_time>+3%")], found)
        assert not (gate.has_failed and name_verdict(found) == "NO CLEAR CHANGE")
