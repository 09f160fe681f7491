"""Runs are compared where they can be: metric by metric, finding by finding, rank by rank."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from support.web.stores import HOT, LATE, SLOW_RANK, open_run

from tracelens.comparison import Comparison, RunMetrics, compare
from tracelens.comparison.changes import FindingChange
from tracelens.comparison.series import subtract_compute_time
from tracelens.model.findings import Finding
from tracelens.simulator.synthetic import Fault, Scenario
from tracelens.stats.between_runs import Change
from tracelens_dashboard.runs.store import Store

HEALTHY = Scenario(ranks=6, steps=50)
BEGIN, END = 20, 39


@cache
def slow() -> Store:
    return open_run(SLOW_RANK, LATE)


@cache
def healthy(seed: int = 0) -> Store:
    return open_run(replace(HEALTHY, seed=seed))


@cache
def steps(seed: int = 0) -> RunMetrics:
    return RunMetrics.from_run(healthy(seed).run)


@cache
def slower() -> RunMetrics:
    """Backprop of 1.6 times its length on all ranks."""
    everywhere = Fault("backprop", tuple(range(6)), factor=1.6)
    return RunMetrics.from_run(open_run(replace(HEALTHY, seed=9, faults=(everywhere,))).run)


def found_in(runs: list[tuple[Finding, ...]], new: tuple[Finding, ...]) -> list[FindingChange]:
    baselines = [replace(steps(), findings=findings) for findings in runs]
    return list(compare(baselines, replace(steps(), findings=new)).finding_changes)


def test_what_only_one_run_has_is_left_out() -> None:
    """Of 4 ranks and 60 steps here, 6 and 50 there, 4 ranks and 50 steps are compared."""
    paired = subtract_compute_time(slow().residuals, healthy().residuals)
    assert paired.ranks == (0, 1, 2, 3)
    assert paired.difference_ns.shape == (4, 50)
    assert paired.steps == paired.other_steps == tuple(range(50))


def test_the_planted_difference_is_where_it_was_planted() -> None:
    """Rank 2 works longer in steps 20-39, and nowhere else does anything of that size show."""
    own = subtract_compute_time(slow().residuals, healthy().residuals).difference_ns
    planted = own[2, BEGIN : END + 1]
    rest = own.copy()
    rest[2, BEGIN : END + 1] = 0
    assert planted.min() > 3 * np.abs(rest).max()


def test_steps_are_matched_by_their_place_not_their_number() -> None:
    """A run that goes on from a checkpoint at step 1000 is compared from its first step on."""
    late = slow().residuals
    resumed = replace(late, steps=tuple(step + 1000 for step in late.steps))
    found = subtract_compute_time(late, resumed)
    assert found.other_steps[0] == 1000
    assert np.nanmax(np.abs(found.difference_ns)) == 0


def test_ranks_are_matched_by_their_number() -> None:
    """The order of the rows of a run plays no part."""
    late = slow().residuals
    turned = replace(late, ranks=late.ranks[::-1], compute_ns=late.compute_ns[::-1])
    assert np.nanmax(np.abs(subtract_compute_time(late, turned).difference_ns)) == 0


def test_a_run_does_not_differ_from_itself() -> None:
    """Neither in any metric nor in its findings."""
    run = RunMetrics.from_run(slow().run)
    comparison = compare([run], run)
    assert [metric.change.difference for metric in comparison.metrics] == [0] * len(
        comparison.metrics
    )
    assert not any(metric.is_clear for metric in comparison.metrics)
    assert {row.state for row in comparison.finding_changes} == {"both"}


@pytest.mark.parametrize("baselines", [1, 3])
def test_what_was_planted_is_what_changed(baselines: int) -> None:
    """Backprop lasts 1.6 times as long, the step by as much; the other phases are as they were."""
    comparison = compare([steps(seed) for seed in range(baselines)], slower())
    step, backprop = comparison.find_metric("step_time"), comparison.find_metric("phase:backprop")
    assert step
    assert backprop
    assert step.is_clear
    assert backprop.is_clear
    assert backprop.change.to_share(backprop.change.difference) == pytest.approx(0.6, abs=0.03)
    assert backprop.change.difference == pytest.approx(step.change.difference, rel=0.1)
    assert comparison.phase_metrics[0] is backprop
    for name in ("phase:data", "phase:forward", "phase:update"):
        unchanged = comparison.find_metric(name)
        assert unchanged
        assert not unchanged.is_clear


def test_the_interval_holds_the_truth() -> None:
    """Of the step: between what is certain and what was planted."""
    change = found_step(compare([steps(0), steps(1), steps(2)], slower()))
    assert change.low_difference is not None
    assert change.high_difference is not None
    assert 0 < change.low_difference < change.difference < change.high_difference


def found_step(found: Comparison) -> Change:
    step = found.find_metric("step_time")
    assert step
    return step.change


def test_baselines_that_differ_widen_the_interval() -> None:
    """A change that one baseline makes clear is within what three noisy ones differ by."""
    noisy = [scale_metrics(steps(k), factor) for k, factor in enumerate((0.8, 1.0, 1.2))]
    new = scale_metrics(steps(5), 1.15)
    of_one_baseline, of_three_baselines = compare([steps(0)], new), compare(noisy, new)
    assert found_step(of_one_baseline).deviation_of_baselines is None
    assert (found_step(of_three_baselines).deviation_of_baselines or 0) > 0.15 * found_step(
        of_three_baselines
    ).value_before
    assert of_one_baseline.metrics[0].is_clear
    assert not of_three_baselines.metrics[0].is_clear


def scale_metrics(run: RunMetrics, factor: float) -> RunMetrics:
    return replace(
        run,
        values_by_metric={name: series * factor for name, series in run.values_by_metric.items()},
    )


def test_a_run_without_steps_has_no_metrics() -> None:
    """Its findings are compared all the same."""
    empty = replace(steps(), step_count=0, values_by_metric={}, findings=(LATE,))
    found = compare([steps()], empty)
    assert found.metrics == ()
    assert [row.state for row in found.finding_changes] == ["new"]


def test_what_most_steps_lack_is_measured_by_its_mean() -> None:
    """A checkpoint in each tenth step has a median of nothing."""
    rare = np.where(np.arange(50) % 10 == 0, 5e6, 0.0)
    before = replace(
        steps(), values_by_metric={**steps().values_by_metric, "phase:checkpoint": rare}
    )
    after = replace(
        steps(), values_by_metric={**steps().values_by_metric, "phase:checkpoint": 2 * rare}
    )
    metric = compare([before], after).find_metric("phase:checkpoint")
    assert metric
    assert metric.statistic == "mean"
    assert (metric.change.value_before, metric.change.value_after) == (5e5, 1e6)


def test_findings_are_alike_by_what_they_are_and_what_they_name() -> None:
    """Other steps or costs are the same finding; another rank is a new one, and the first is gone."""
    again = replace(LATE, steps=(5, 9), saving=0.01)
    rows = found_in([(LATE,)], (again, HOT))
    assert [(row.finding, row.state) for row in rows] == [(HOT, "new"), (again, "both")]
    assert (rows[1].saving_share_before, rows[1].saving_share_after) == (LATE.saving, 0.01)
    moved = found_in([(LATE,)], (replace(LATE, ranks=(3,)),))
    assert [row.state for row in moved] == ["new", "gone"]


def test_a_finding_that_any_baseline_has_is_not_new() -> None:
    """How many have it is counted."""
    rows = found_in([(), (LATE,), ()], (LATE,))
    assert [(row.state, row.baseline_count) for row in rows] == [("both", 1)]
