"""What runs of several sizes are compared by: a step's length, its factors, the slowest rank's work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.errors import UnusableInput
from tracelens.lod.step_times import CategoryTimes
from tracelens.model.inert import clean

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    from tracelens.accounting.phases import Phases
    from tracelens.analyses.interleaving import Interleaving
    from tracelens.lod.run_data import Run
    from tracelens.model.result import Report
    from tracelens.model.trace import Trace

SERVERS: Final = "parameter servers"
COLLECTIVES: Final = "collectives"
# Of POP; together the parallel efficiency. With `computation` they are all that scaling loses.
FACTORS: Final = ("load_balance", "serialisation", "transfer")
_POP: Final = {name: f"{name}_efficiency" for name in ("serialisation", "transfer")}


@dataclass(frozen=True)
class Point:
    """A run as one point of a curve; times are of a step, nanoseconds.

    `step_ns` is the job's length over its steps, `useful_ns` the useful computation of a rank in it, on
    average, and `share_by_factor` POP's factors, so that useful / step is their product. `work_ns` is a
    rank's own work within its steps, on average, and `slowest_work_ns` that of each step's slowest rank.
    `communication_ns` is the mean transfer time of a rank; `hidden_communication_ns` is the part of it
    that overlaps with work, `backprop_ns` a rank's mean backprop.
    """

    name: str
    worker_count: int
    shard_count: int
    step_count: int
    step_ns: float
    useful_ns: float
    work_ns: float
    slowest_work_ns: float
    communication_ns: float
    hidden_communication_ns: float
    backprop_ns: float
    share_by_factor: Mapping[str, float]

    @property
    def system(self) -> str:
        """What ranks exchange gradients by."""
        return SERVERS if self.shard_count else COLLECTIVES

    @property
    def efficiency(self) -> float:
        """Parallel efficiency, as POP defines it."""
        return self.useful_ns / self.step_ns

    @classmethod
    def from_run(cls, run: Run, name: str) -> Point:
        """Measure a run by its index.

        Raises:
            UnusableInput: it has no step, or no useful computation in any.
        """
        sizes = run.workers.height, run.shards.height
        return cls._from_times(
            run.report, run.category_times, name, sizes, run.tables["overlap_by_step"]
        )

    @classmethod
    def from_trace(cls, trace: Trace, report: Report, name: str) -> Point:
        """Measure a run that was just explained; raises as `from_run`."""
        phases = cast("Phases", report.results["phases"])
        times = CategoryTimes.from_partition(
            phases.spent_ns, phases.pieces.step_windows, trace.workers["rank"].to_list()
        )
        overlap = cast("Interleaving", report.results["interleaving"]).by_step
        return cls._from_times(
            report, times, name, (trace.workers.height, trace.shards.height), overlap
        )

    @classmethod
    def _from_times(
        cls,
        report: Report,
        times: CategoryTimes,
        name: str,
        sizes: tuple[int, int],
        overlap: pl.DataFrame,
    ) -> Point:
        """Measure a run of (workers, servers); `overlap` has hidden and exposed transfer by step, ns."""
        efficiency, steps = report.efficiency, report.summary.steps
        if efficiency is None or not steps or not efficiency.pop:
            raise UnusableInput(
                f"'{clean(name)}' has no steps with computation: expected a run that records them "
                "('tracelens info' says what there is)."
            )
        step_ns = efficiency.job_ns / steps
        work_ns = times.sum_time_ns(OWN_CATEGORIES)  # [rank, step], nan of absent ranks
        hidden_ns, exposed_ns = (_mean(overlap[name]) for name in ("hidden_ns", "transfer_ns"))
        workers, shards = sizes
        present_work_ns = work_ns[:, ~np.isnan(work_ns).all(axis=0)]
        return cls(
            name=name,
            worker_count=workers,
            shard_count=shards,
            step_count=steps,
            step_ns=step_ns,
            useful_ns=efficiency.achieved * step_ns,
            work_ns=float(np.nanmean(present_work_ns, axis=0).mean()),
            slowest_work_ns=float(np.nanmax(present_work_ns, axis=0).mean()),
            communication_ns=hidden_ns + exposed_ns,
            hidden_communication_ns=hidden_ns,
            backprop_ns=float(np.nanmean(times.sum_time_ns(("backprop",)))),
            share_by_factor=_name_factors(efficiency.pop),
        )


def _mean(column: pl.Series) -> float:
    return float(column.to_numpy().mean()) if len(column) else 0.0


def _name_factors(pop: Mapping[str, float]) -> dict[str, float]:
    """Return the factors by their short names; what was not measured apart is transfer."""
    if "transfer_efficiency" in pop:
        return {name: pop[_POP.get(name, name)] for name in FACTORS}
    return {
        "load_balance": pop["load_balance"],
        "serialisation": 1.0,
        "transfer": pop["communication_efficiency"],
    }
