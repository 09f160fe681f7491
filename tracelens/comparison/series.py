"""What is compared of a run: a number for each step and metric, and its findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.categories import CATEGORIES, OWN_CATEGORIES
from tracelens.model import fmt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.arrays import Floats
    from tracelens.lod.residuals import Residuals
    from tracelens.lod.run_data import Run
    from tracelens.lod.step_times import CategoryTimes
    from tracelens.model.findings import Finding

STEP_TIME: Final = "step_time"
MEAN_STEP_TIME: Final = "mean_step_time"
EFFICIENCY: Final = "efficiency"
_NAMED: Final = {"wait": "wait", "transfer": "exposed"}  # the others are `phase:CATEGORY`
CATEGORY_OF: Final = {_NAMED.get(name, f"phase:{name}"): name for name in CATEGORIES}
METRICS: Final = (STEP_TIME, MEAN_STEP_TIME, EFFICIENCY, *CATEGORY_OF)


def name_metric(metric: str) -> str:
    """Name a metric as tables do."""
    titles = {STEP_TIME: "step", MEAN_STEP_TIME: "step, mean", EFFICIENCY: "parallel efficiency"}
    return titles.get(metric) or fmt.phase(CATEGORY_OF[metric])


@dataclass(frozen=True, eq=False)
class RunMetrics:
    """A run as it is compared: a value per step, [step] in ns (efficiency: a share), by metric."""

    name: str
    rank_count: int
    shard_count: int
    step_count: int
    values_by_metric: Mapping[str, Floats]
    findings: tuple[Finding, ...]

    @classmethod
    def from_run(cls, run: Run) -> RunMetrics:
        """Measure a run; its workers and shards are tables with one row each."""
        lengths_ns = (
            (run.step_windows["end_ns"] - run.step_windows["start_ns"])
            .to_numpy()
            .astype(np.float64)
        )
        return cls(
            name=run.name,
            rank_count=run.workers.height,
            shard_count=run.shards.height,
            step_count=len(lengths_ns),
            values_by_metric=measure_metrics(lengths_ns, run.category_times),
            findings=run.report.findings,
        )


def measure_metrics(step_ns: Floats, times: CategoryTimes) -> dict[str, Floats]:
    """Return the values of each metric, [step], by the lengths of steps, [step], and ranks' times.

    A phase is the mean over the ranks of a step. Efficiency is POP parallel efficiency, of the time
    inside steps: the ranks' own time in a step, as a share of all of it.
    """
    values_by_metric = {STEP_TIME: step_ns, MEAN_STEP_TIME: step_ns}
    # Over the ranks, [category, step].
    category_ns, mean_ns = times.sums_over_ranks.total_ns, times.mean_time_ns
    if category_ns.size:
        own_rows = [row for row, name in enumerate(times.categories) if name in OWN_CATEGORIES]
        values_by_metric[EFFICIENCY] = category_ns[own_rows].sum(axis=0) / np.maximum(
            category_ns.sum(axis=0), 1.0
        )
    mean_by_category = dict(zip(times.categories, mean_ns, strict=True))
    for metric, category in CATEGORY_OF.items():
        if category in mean_by_category:
            values_by_metric[metric] = np.asarray(mean_by_category[category])
    return values_by_metric


@dataclass(frozen=True, eq=False)
class Difference:
    """Compute time here less that of the other run, ns, [rank, step]; NaN where one was not there.

    `steps` are the numbers of the steps in this run, `other_steps` those in the other one: steps
    are matched by their index since the run's begin, as two runs rarely number, or end, alike.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    other_steps: tuple[int, ...]
    difference_ns: Floats


def subtract_compute_time(residuals: Residuals, other_residuals: Residuals) -> Difference:
    """Subtract another run's compute time from this one's, for ranks and steps that both have."""
    # Steps are matched by their index; compute times are [rank, step] in ns.
    ranks = tuple(rank for rank in residuals.ranks if rank in set(other_residuals.ranks))
    step_count = min(len(residuals.steps), len(other_residuals.steps))
    own_rows = [residuals.ranks.index(rank) for rank in ranks]
    other_rows = [other_residuals.ranks.index(rank) for rank in ranks]
    own_ns = residuals.compute_ns[own_rows, :step_count]
    other_ns = other_residuals.compute_ns[other_rows, :step_count]
    steps, other_steps = residuals.steps[:step_count], other_residuals.steps[:step_count]
    return Difference(ranks, steps, other_steps, np.asarray(own_ns - other_ns))
