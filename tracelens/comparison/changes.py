"""Compares a run with baselines: each metric with its interval, and which findings are new or gone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from tracelens.comparison.series import CATEGORY_OF, EFFICIENCY, MEAN_STEP_TIME, METRICS, STEP_TIME
from tracelens.stats import between_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.comparison.series import RunMetrics
    from tracelens.model.findings import Finding
    from tracelens.stats.between_runs import Change

State = Literal["new", "gone", "both"]
# share of a step: smaller parts of a step are not compared [policy]
MIN_SHARE_OF_STEP_TO_COMPARE: Final = 1e-3


@dataclass(frozen=True)
class Metric:
    """A metric's change; `p_value` is that of equal runs, two-sided and adjusted (Holm).

    `statistic` represents a run: the median of its steps, or their mean where most steps have
    none of it.
    """

    name: str
    statistic: Literal["median", "mean"]
    change: Change
    p_value: float | None

    @property
    def is_clear(self) -> bool:
        """Whether equal runs would rarely differ so far."""
        return between_runs.is_rare(self.p_value)


@dataclass(frozen=True)
class FindingChange:
    """A finding of the new run, or of baselines; savings are shares of the job, None if unknown.

    `baseline_count` is how many have it; `saving_share_before` is the largest saving among them.
    """

    finding: Finding
    state: State
    baseline_count: int
    saving_share_before: float | None
    saving_share_after: float | None


@dataclass(frozen=True, eq=False)
class Comparison:
    """What changed: `metrics` in the order of `METRICS`, those that no run has left out."""

    baseline_runs: tuple[RunMetrics, ...]
    new_run: RunMetrics
    metrics: tuple[Metric, ...]
    finding_changes: tuple[FindingChange, ...]

    def find_metric(self, name: str) -> Metric | None:
        """Return a metric by name; None where no run has it."""
        return next((metric for metric in self.metrics if metric.name == name), None)

    @property
    def phase_metrics(self) -> list[Metric]:
        """The metrics that are parts of a step, what changed most first."""
        parts = [metric for metric in self.metrics if metric.name in CATEGORY_OF]
        return sorted(parts, key=lambda metric: -abs(metric.change.difference))


def compare(baselines: Sequence[RunMetrics], new: RunMetrics) -> Comparison:
    """Compare a run with one baseline or more.

    The step's median is judged alone; the other metrics are one family (Holm 1979).
    """
    metrics = _compare_metrics(baselines, new)
    return Comparison(tuple(baselines), new, metrics, _compare_findings(baselines, new))


def _compare_metrics(baselines: Sequence[RunMetrics], new: RunMetrics) -> tuple[Metric, ...]:
    """Measure the change of each metric from the baselines to the new run; empty without steps.

    Probabilities but that of the median step are adjusted for their number.
    """
    runs = (*baselines, new)
    if not all(run.step_count for run in runs):
        return ()
    step_ns = float(np.mean([np.median(run.values_by_metric[STEP_TIME]) for run in baselines]))
    metrics = []
    for name in METRICS:
        values_by_run = [run.values_by_metric.get(name, np.zeros(run.step_count)) for run in runs]
        is_measured = any(name in run.values_by_metric for run in runs)
        if is_measured and not _is_negligible(name, values_by_run, step_ns):
            metrics.append(_measure_metric(name, values_by_run, step_ns))
    probabilities = [metric.p_value for metric in metrics if metric.name != STEP_TIME]
    adjusted = iter(between_runs.adjust_for_count(probabilities))
    return tuple(
        metric if metric.name == STEP_TIME else replace(metric, p_value=next(adjusted))
        for metric in metrics
    )


def _measure_metric(name: str, values_by_run: Sequence[Any], step_ns: float) -> Metric:
    """Measure the change of a metric from the first runs to the last one.

    Values are [run][step], ns (efficiency: a share). Its p-value is not adjusted. What equal runs differ
    by is a share of a metric's usual size: of a phase, more than in proportion to its time.
    """
    is_mostly_zero = any(not np.median(values) and values.any() for values in values_by_run)
    use_mean = name == MEAN_STEP_TIME or is_mostly_zero
    levels = [
        between_runs.measure_level(values, mean=use_mean, seed=run_index)
        for run_index, values in enumerate(values_by_run)
    ]
    step_share = float(np.mean([level.value for level in levels])) / max(step_ns, 1.0)
    usual_ns = step_ns * float(np.sqrt(min(max(step_share, 0.0), 1.0)))
    usual_size = 1.0 if name == EFFICIENCY else usual_ns
    change = between_runs.measure_change(levels[:-1], levels[-1], usual_size)
    return Metric(name, "mean" if use_mean else "median", change, change.p_of_difference)


def _is_negligible(name: str, values_by_run: Sequence[Any], step_ns: float) -> bool:
    """Return True if a phase is below `MIN_SHARE_OF_STEP_TO_COMPARE` in all runs."""
    return (
        name in CATEGORY_OF
        and max(float(values.mean()) for values in values_by_run)
        < MIN_SHARE_OF_STEP_TO_COMPARE * step_ns
    )


def find_match_key(finding: Finding) -> tuple[Any, ...]:
    """Return the key by which findings of two runs are matched: kind, phase and subject."""
    subjects = finding.ranks or finding.shards or finding.hosts
    return finding.kind, finding.phase, tuple(sorted(subjects))


def _compare_findings(
    baselines: Sequence[RunMetrics], new: RunMetrics
) -> tuple[FindingChange, ...]:
    """List the new run's findings, then those of baselines alone, each by saving."""
    # Of findings of one run with the same key the first one counts.
    baseline_findings_by_key: dict[Any, list[Finding]] = {}
    for run in baselines:
        finding_by_key = {find_match_key(finding): finding for finding in reversed(run.findings)}
        for key, finding in finding_by_key.items():
            baseline_findings_by_key.setdefault(key, []).append(finding)
    new_finding_by_key = {find_match_key(finding): finding for finding in reversed(new.findings)}
    changes = [
        FindingChange(
            finding,
            state="both" if key in baseline_findings_by_key else "new",
            baseline_count=len(baseline_findings_by_key.get(key, ())),
            saving_share_before=_find_largest_saving(baseline_findings_by_key.get(key, ())),
            saving_share_after=finding.saving,
        )
        for key, finding in new_finding_by_key.items()
    ]
    changes += [
        FindingChange(
            findings[0],
            state="gone",
            baseline_count=len(findings),
            saving_share_before=_find_largest_saving(findings),
            saving_share_after=None,
        )
        for key, findings in baseline_findings_by_key.items()
        if key not in new_finding_by_key
    ]
    states = ("new", "both", "gone")
    return tuple(
        sorted(changes, key=lambda change: (states.index(change.state), -_get_saving(change)))
    )


def _find_largest_saving(findings: Sequence[Finding]) -> float | None:
    return max((finding.saving for finding in findings if finding.saving is not None), default=None)


def _get_saving(change: FindingChange) -> float:
    return change.saving_share_after or change.saving_share_before or 0.0
