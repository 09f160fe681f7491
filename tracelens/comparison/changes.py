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

    `statistic` is what stands for a run: the median of its steps, or their mean where most steps have
    none of it.
    """

    name: str
    statistic: Literal["median", "mean"]
    change: Change
    probability: float | None

    @property
    def clear(self) -> bool:
        """Whether equal runs would rarely differ so far."""
        return between_runs.rare(self.probability)


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
    metrics = _metrics(baselines, new)
    return Comparison(tuple(baselines), new, metrics, _findings(baselines, new))


def _metrics(baselines: Sequence[Steps], new: Steps) -> tuple[Metric, ...]:
    runs = (*baselines, new)
    if not all(run.count for run in runs):
        return ()
    step_ns = float(np.mean([np.median(run.metrics[STEP_TIME]) for run in baselines]))
    found: list[tuple[str, Any, Change]] = []
    for name in METRICS:
        series = [run.metrics.get(name, np.zeros(run.count)) for run in runs]
        if not any(name in run.metrics for run in runs) or _negligible(name, series, step_ns):
            continue
        mean = name == MEAN_STEP_TIME or any(not np.median(one) and one.any() for one in series)
        levels = [between_runs.level(one, mean=mean, seed=k) for k, one in enumerate(series)]
        share = float(np.mean([one.value for one in levels])) / max(step_ns, 1.0)
        unit = 1.0 if name == EFFICIENCY else step_ns * float(np.sqrt(min(max(share, 0.0), 1.0)))
        change = between_runs.change(levels[:-1], levels[-1], unit)
        found.append((name, "mean" if mean else "median", change))
    others = [change.either for name, _, change in found if name != STEP_TIME]
    joint = iter(between_runs.adjusted(others))
    return tuple(
        Metric(name, how, change, change.either if name == STEP_TIME else next(joint))
        for name, how, change in found
    )


def _negligible(name: str, series: Sequence[Any], step_ns: float) -> bool:
    """Return whether a part of a step is next to nothing in all runs."""
    return (
        name in CATEGORY_OF
        and max(float(one.mean()) for one in series) < MIN_SHARE_OF_STEP_TO_COMPARE * step_ns
    )


def likeness(finding: Finding) -> tuple[Any, ...]:
    """Return what makes two findings the same: their kind, phase, and what they are about."""
    where = finding.ranks or finding.shards or finding.hosts
    return finding.kind, finding.phase, tuple(sorted(where))


def _findings(baselines: Sequence[Steps], new: Steps) -> tuple[FindingChange, ...]:
    """List the new run's findings, then those of baselines alone, each by saving."""
    before: dict[Any, list[Finding]] = {}
    for run in baselines:
        for key, finding in {likeness(f): f for f in reversed(run.findings)}.items():
            before.setdefault(key, []).append(finding)
    after = {likeness(finding): finding for finding in reversed(new.findings)}
    rows = [
        FindingChange(
            finding,
            "both" if key in before else "new",
            len(before.get(key, ())),
            _largest(before.get(key, ())),
            finding.saving,
        )
        for key, finding in after.items()
    ]
    rows += [
        FindingChange(found[0], "gone", len(found), _largest(found), None)
        for key, found in before.items()
        if key not in after
    ]
    order = ("new", "both", "gone")
    return tuple(sorted(rows, key=lambda row: (order.index(row.state), -_weight(row))))


def _largest(found: Sequence[Finding]) -> float | None:
    return max((one.saving for one in found if one.saving is not None), default=None)


def _weight(row: FindingChange) -> float:
    return row.after or row.before or 0.0
