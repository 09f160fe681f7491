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
    from tracelens.lod.step_times import Times
    from tracelens.model.findings import Finding

STEP_TIME: Final = "step_time"
MEAN_STEP_TIME: Final = "mean_step_time"
EFFICIENCY: Final = "efficiency"
_NAMED: Final = {"wait": "wait", "transfer": "exposed"}  # the others are `phase:CATEGORY`
CATEGORY_OF: Final = {_NAMED.get(name, f"phase:{name}"): name for name in CATEGORIES}
METRICS: Final = (STEP_TIME, MEAN_STEP_TIME, EFFICIENCY, *CATEGORY_OF)


def title(metric: str) -> str:
    """Name a metric as tables do."""
    titles = {STEP_TIME: "step", MEAN_STEP_TIME: "step, mean", EFFICIENCY: "parallel efficiency"}
    return titles.get(metric) or fmt.phase(CATEGORY_OF[metric])


@dataclass(frozen=True, eq=False)
class Steps:
    """A run as it is compared: `metrics` hold a value per step, ns (efficiency: a share), by name."""

    name: str
    ranks: int
    shards: int
    count: int
    metrics: Mapping[str, Floats]
    findings: tuple[Finding, ...]

    @classmethod
    def from_run(cls, run: Run) -> Steps:
        """Measure a run."""
        lengths = (run.windows["end_ns"] - run.windows["start_ns"]).to_numpy().astype(np.float64)
        return cls(
            name=run.name,
            ranks=run.workers.height,
            shards=run.shards.height,
            count=len(lengths),
            metrics=measure_metrics(lengths, run.times),
            findings=run.report.findings,
        )


def measure_metrics(step_ns: Floats, times: Times) -> dict[str, Floats]:
    """Return the metrics of a run by its steps' lengths, ns, [step], and ranks' time by category.

    A phase is the mean over the ranks of a step. Efficiency is POP parallel efficiency, of the time
    inside steps: the ranks' own time in a step, as a share of all of it.
    """
    metrics = {STEP_TIME: step_ns, MEAN_STEP_TIME: step_ns}
    category_ns, mean_ns = times.sums.ns, times.mean
    if category_ns.size:
        own_rows = [row for row, name in enumerate(times.categories) if name in OWN_CATEGORIES]
        metrics[EFFICIENCY] = category_ns[own_rows].sum(axis=0) / np.maximum(
            category_ns.sum(axis=0), 1.0
        )
    mean_by_category = dict(zip(times.categories, mean_ns, strict=True))
    for metric, category in CATEGORY_OF.items():
        if category in mean_by_category:
            metrics[metric] = np.asarray(mean_by_category[category])
    return metrics


@dataclass(frozen=True, eq=False)
class Difference:
    """Own time here less that of the other run, ns, [rank, place]; NaN where one was not there.

    `steps` are what this run calls its steps at these places, `others` what the other one does: steps
    are matched by their place since the run's begin, as two runs rarely number, or end, alike.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    others: tuple[int, ...]
    compute_ns: Floats


def difference(residuals: Residuals, other: Residuals) -> Difference:
    """Subtract another run's compute time from this one's, for ranks and steps that both have."""
    ranks = tuple(rank for rank in residuals.ranks if rank in set(other.ranks))
    step_count = min(len(residuals.steps), len(other.steps))
    own_ns, other_ns = (
        run.compute_ns[[run.ranks.index(rank) for rank in ranks], :step_count]
        for run in (residuals, other)
    )
    steps, other_steps = (run.steps[:step_count] for run in (residuals, other))
    return Difference(ranks, steps, other_steps, np.asarray(own_ns - other_ns))
