"""Interleaving: how much communication own work hides, and what lies between two weight updates.

With C the own work and M the communication of a rank, hidden = |C and M|, exposed = |M without C|,
overlap = hidden / |M|; exposed communication is either waiting (not all have come) or transfer.
The gap after update i is start(i+1) - end(i): what background work such as a checkpoint could use
(Li et al. 2019 ask where those gaps are; docs/analyses.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.analyses.result import Finding

if TYPE_CHECKING:
    from tracelens.analyses.phases import Phases
    from tracelens.trace import Trace

__all__ = ["GAP_COLUMNS", "OVERLAP_COLUMNS", "Interleaving", "run"]

WORTH_SAYING: Final = 0.05  # share of job time
OVERLAP_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "hidden_ns": pl.Int64(),
    "wait_ns": pl.Int64(),  # exposed: in collectives not yet entered by all, or in PS queues
    "transfer_ns": pl.Int64(),  # exposed: the rest
    "backprop_ns": pl.Int64(),
    "overlap": pl.Float64(),  # hidden / (hidden + exposed), null without communication
    "hideable_ns": pl.Int64(),  # exposed transfer that the step's backprop has room to hide
}
GAP_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "step": pl.Int32(),  # of the update after which the gap lies
    "start_ns": pl.Int64(),
    "gap_ns": pl.Int64(),
}


@dataclass(frozen=True)
class Interleaving:
    """Overlap per rank, gaps between updates, and what better interleaving could save."""

    overlap: pl.DataFrame
    gaps: pl.DataFrame
    findings: tuple[Finding, ...]


def run(trace: Trace, phases: Phases) -> Interleaving:
    """Measure overlap and gaps of the main workers."""
    overlap = _overlap(phases)
    gaps = _gaps(trace)
    job = _job_ns(trace)
    findings = [*_exposed(overlap, job), *_idle_between_updates(phases, gaps, job)] if job else []
    return Interleaving(overlap, gaps, tuple(findings))


def _job_ns(trace: Trace) -> int:
    start, end = trace.steps["start_ns"].min(), trace.steps["end_ns"].max()
    return end - start if isinstance(start, int) and isinstance(end, int) else 0


def _overlap(phases: Phases) -> pl.DataFrame:
    def spent(*categories: str) -> pl.Expr:
        chosen = pl.col("category").cast(pl.String).is_in(categories)
        return pl.col("ns").filter(chosen).sum()

    steps = phases.times.group_by("rank", "step").agg(
        wait_ns=spent("wait", "ps_queue"),
        transfer_ns=spent("transfer"),
        backprop_ns=spent("backprop"),
    )
    hidden = phases.hidden.select("rank", "step", hidden_ns="ns")
    room = (pl.col("backprop_ns") - pl.col("hidden_ns")).clip(lower_bound=0)
    ranks = (
        steps.join(hidden, on=["rank", "step"], how="left")
        .with_columns(pl.col("hidden_ns").fill_null(0))
        .with_columns(hideable_ns=pl.min_horizontal("transfer_ns", room))
        .group_by("rank")
        .agg(pl.col("hidden_ns", "wait_ns", "transfer_ns", "backprop_ns", "hideable_ns").sum())
        .sort("rank")
    )
    communication = pl.col("hidden_ns") + pl.col("wait_ns") + pl.col("transfer_ns")
    share = pl.when(communication > 0).then(pl.col("hidden_ns") / communication)
    return ranks.with_columns(overlap=share).select(*OVERLAP_COLUMNS)


def _gaps(trace: Trace) -> pl.DataFrame:
    """Return the time from the end of a step's last update to the begin of the next step's first."""
    threads = trace.workers.select("process", thread="training_thread").lazy()
    updates = (
        trace.spans.filter((pl.col("kind") == "update") & pl.col("end_ns").is_not_null())
        .join(threads, on=["process", "thread"], how="semi")
        .group_by("process", "rank", "step")
        .agg(first_ns=pl.col("start_ns").min(), start_ns=pl.col("end_ns").max())
        .sort("process", "start_ns")
    )
    following = pl.col("first_ns").shift(-1).over("process")
    return (
        updates.with_columns(gap_ns=following - pl.col("start_ns"))
        .drop_nulls("gap_ns")
        .select(*GAP_COLUMNS)
        .collect()
    )


def _exposed(overlap: pl.DataFrame, job: int) -> list[Finding]:
    ranks = overlap.height
    transfer = int(overlap["transfer_ns"].sum()) / (ranks * job) if ranks else 0.0
    saving = int(overlap["hideable_ns"].sum()) / (ranks * job) if ranks else 0.0
    if saving < WORTH_SAYING:
        return []
    mean = overlap["overlap"].mean()
    hidden = mean if isinstance(mean, float) else 0.0
    return [
        Finding(
            kind="exposed_communication",
            category="opportunity",
            saving=saving,
            phase="reduction",
            sentence=(
                f"Transfer that nothing hides takes {100 * transfer:.0f} % of the time, and only "
                f"{100 * hidden:.0f} % of all communication runs beside own work: starting "
                "reductions while backprop still runs could hide "
                f"up to {100 * saving:.0f} % of the job."
            ),
            evidence={"exposed_transfer": transfer, "overlap": hidden},
        )
    ]


def _idle_between_updates(phases: Phases, gaps: pl.DataFrame, job: int) -> list[Finding]:
    idle = phases.times.filter(pl.col("category").cast(pl.String).is_in(["idle", "unknown"]))
    ranks = phases.times["process"].n_unique()
    share = int(idle["ns"].sum()) / (ranks * job) if ranks else 0.0
    typical, long = gaps["gap_ns"].median(), gaps["gap_ns"].quantile(0.9)
    if share < WORTH_SAYING or not isinstance(typical, float) or not isinstance(long, float):
        return []
    return [
        Finding(
            kind="update_gap",
            category="opportunity",
            saving=share,
            phase="update",
            sentence=(
                f"Between weight updates {100 * share:.0f} % of the time nothing was recorded; "
                f"a gap lasts {typical / 1e6:.1f} ms typically, {long / 1e6:.1f} ms in one of ten."
            ),
            evidence={"median_gap_ns": typical, "p90_gap_ns": long, "idle": share},
        )
    ]
