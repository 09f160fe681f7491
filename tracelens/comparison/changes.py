"""Compares a run with baselines: each metric with its interval, and which findings are new or gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from tracelens.comparison.series import CATEGORY_OF, EFFICIENCY, MEAN_STEP_TIME, METRICS, STEP_TIME
from tracelens.stats import between_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.comparison.series import Steps
    from tracelens.model.findings import Finding
    from tracelens.stats.between_runs import Change

State = Literal["new", "gone", "both"]
# share of a step: smaller parts of a step are not compared [policy]
MIN_SHARE_OF_STEP_TO_COMPARE: Final = 1e-3


@dataclass(frozen=True)
class Metric:
    """A metric's change; `probability` is that of equal runs, two-sided and adjusted (Holm).

    `statistic` represents a run: the median of its steps, or their mean where most steps have
    none of it.
    """

    name: str
    statistic: Literal["median", "mean"]
    change: Change
    probability: float | None

    @property
    def clear(self) -> bool:
        """Whether equal runs would rarely differ so far."""
        return between_runs.is_rare(self.probability)


@dataclass(frozen=True)
class FindingChange:
    """A finding of the new run, or of baselines; `before` and `after` are its savings, null if unknown.

    `baselines` counts those that have it; `before` is the largest saving among them.
    """

    finding: Finding
    state: State
    baselines: int
    before: float | None
    after: float | None


@dataclass(frozen=True, eq=False)
class Comparison:
    """What changed: `metrics` in the order of `METRICS`, those that no run has left out."""

    baselines: tuple[Steps, ...]
    new: Steps
    metrics: tuple[Metric, ...]
    findings: tuple[FindingChange, ...]

    def metric(self, name: str) -> Metric | None:
        """Return a metric by name; null where no run has it."""
        return next((metric for metric in self.metrics if metric.name == name), None)

    @property
    def phases(self) -> list[Metric]:
        """The metrics that are parts of a step, what changed most first."""
        parts = [metric for metric in self.metrics if metric.name in CATEGORY_OF]
        return sorted(parts, key=lambda metric: -abs(metric.change.delta))


def compare(baselines: Sequence[Steps], new: Steps) -> Comparison:
    """Compare a run with one baseline or more.

    The step's median is judged alone; the other metrics are one family (Holm 1979).
    """
    metrics = _compare_metrics(baselines, new)
    return Comparison(tuple(baselines), new, metrics, _compare_findings(baselines, new))


def _compare_metrics(baselines: Sequence[Steps], new: Steps) -> tuple[Metric, ...]:
    """Measure the change of each metric from the baselines to the new run; empty without steps.

    Probabilities but that of the median step are adjusted for their number.
    """
    runs = (*baselines, new)
    if not all(run.count for run in runs):
        return ()
    step_ns = float(np.mean([np.median(run.metrics[STEP_TIME]) for run in baselines]))
    changes: list[tuple[str, Any, Change]] = []  # name, statistic, change
    for name in METRICS:
        series = [run.metrics.get(name, np.zeros(run.count)) for run in runs]  # [run][step]
        if not any(name in run.metrics for run in runs) or _is_negligible(name, series, step_ns):
            continue
        is_mostly_zero = any(not np.median(values) and values.any() for values in series)
        use_mean = name == MEAN_STEP_TIME or is_mostly_zero
        levels = [
            between_runs.measure_level(values, mean=use_mean, seed=run_index)
            for run_index, values in enumerate(series)
        ]
        share = float(np.mean([level.value for level in levels])) / max(step_ns, 1.0)
        unit = 1.0 if name == EFFICIENCY else step_ns * float(np.sqrt(min(max(share, 0.0), 1.0)))
        change = between_runs.measure_change(levels[:-1], levels[-1], unit)
        changes.append((name, "mean" if use_mean else "median", change))
    probabilities = [change.either for name, _, change in changes if name != STEP_TIME]
    adjusted = iter(between_runs.adjust_for_count(probabilities))
    return tuple(
        Metric(name, statistic, change, change.either if name == STEP_TIME else next(adjusted))
        for name, statistic, change in changes
    )


def _is_negligible(name: str, values_by_run: Sequence[Any], step_ns: float) -> bool:
    """Return True if a phase is below `MIN_SHARE_OF_STEP_TO_COMPARE` in all runs."""
    return (
        name in CATEGORY_OF
        and max(float(values.mean()) for values in values_by_run)
        < MIN_SHARE_OF_STEP_TO_COMPARE * step_ns
    )


def likeness(finding: Finding) -> tuple[Any, ...]:
    """Return the key by which findings of two runs are matched: kind, phase and subject."""
    where = finding.ranks or finding.shards or finding.hosts
    return finding.kind, finding.phase, tuple(sorted(where))


def _compare_findings(baselines: Sequence[Steps], new: Steps) -> tuple[FindingChange, ...]:
    """List the new run's findings, then those of baselines alone, each by saving."""
    baseline_findings: dict[Any, list[Finding]] = {}  # by likeness
    for run in baselines:
        finding_by_key = {likeness(finding): finding for finding in reversed(run.findings)}
        for key, finding in finding_by_key.items():
            baseline_findings.setdefault(key, []).append(finding)
    new_findings = {likeness(finding): finding for finding in reversed(new.findings)}
    changes = [
        FindingChange(
            finding,
            "both" if key in baseline_findings else "new",
            len(baseline_findings.get(key, ())),
            _find_largest_saving(baseline_findings.get(key, ())),
            finding.saving,
        )
        for key, finding in new_findings.items()
    ]
    changes += [
        FindingChange(findings[0], "gone", len(findings), _find_largest_saving(findings), None)
        for key, findings in baseline_findings.items()
        if key not in new_findings
    ]
    order = ("new", "both", "gone")
    return tuple(sorted(changes, key=lambda row: (order.index(row.state), -_get_saving(row))))


def _find_largest_saving(findings: Sequence[Finding]) -> float | None:
    return max((finding.saving for finding in findings if finding.saving is not None), default=None)


def _get_saving(row: FindingChange) -> float:
    return row.after or row.before or 0.0
