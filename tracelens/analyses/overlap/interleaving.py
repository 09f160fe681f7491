"""Interleaving: how much communication compute time hides, and what lies between optimizer updates.

With C the compute time and M the communication of a rank, hidden = |C and M|, exposed = |M without C|,
overlap = hidden / |M|; exposed communication is either waiting (not all arrived) or transfer. Waiting
has its cause in another rank and is not counted again here. The gap after update i is start(i+1) -
end(i): what background work such as a checkpoint could use (Li et al. 2019 ask where those gaps are;
docs/analyses/overlap-and-gradient-latency.md).

By bucket it is measured call by call: with o(t) a rank's compute time until t, o(end) - o(start)
of a call is hidden; what is exposed until the last arrival is waiting, the rest transfer. What overlaps
with two calls at once counts for both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.partition import CATEGORIES, COMPUTE_CATEGORIES
from tracelens.accounting.phases import exposed_transfer, job_ns
from tracelens.model import fmt
from tracelens.model.findings import Finding
from tracelens.replay.collectives import hideable_transfer
from tracelens.stats import robust

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.phases import Phases
    from tracelens.accounting.pieces import WorkerPieces
    from tracelens.arrays import Int32s, Ints
    from tracelens.model.trace import Trace

__all__ = [
    "BUCKET_COLUMNS",
    "OVERLAP_COLUMNS",
    "Interleaving",
    "overlap_of_buckets",
    "run",
]


WORTH_REPORTING: Final = 0.05  # share of job time
BOUND: Final = 0.2  # share of job time that no rank hides, whatever it does
WITHIN: Final = "within a step"
BETWEEN: Final = "from step to step"
OVERLAP_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "hidden_ns": pl.Int64(),
    "wait_ns": pl.Int64(),  # exposed: in collectives not yet entered by all, or in PS queues
    "transfer_ns": pl.Int64(),  # exposed: the rest
    "backprop_ns": pl.Int64(),
    "overlap": pl.Float64(),  # hidden / (hidden + exposed), null without communication
}


@dataclass(frozen=True)
class Interleaving:
    """Overlap per rank, step and bucket, gaps between updates, and what better interleaving could save.

    `gap_spread` counts the gaps by length (`robust.py`), within steps and from step to step.
    """

    overlap: pl.DataFrame
    by_step: pl.DataFrame
    by_bucket: pl.DataFrame
    gaps: pl.DataFrame
    gap_spread: pl.DataFrame
    findings: tuple[Finding, ...]


def run(trace: Trace, phases: Phases) -> Interleaving:
    """Measure overlap and gaps of the main workers."""
    overlap, gaps = _overlap(phases), phases.updates.gaps
    job = job_ns(trace)
    found = Interleaving(
        overlap=overlap,
        by_step=_by_step(phases),
        by_bucket=overlap_of_buckets(trace, phases),
        gaps=gaps,
        gap_spread=_gap_spread(gaps),
        findings=(),
    )
    if not job or overlap.is_empty():
        return found
    saving = hideable_transfer(trace, phases) / job
    findings = [*_exposed(trace, phases, overlap, saving), *_between_updates(trace, gaps, job)]
    return replace(found, findings=tuple(findings))


def _spent(*categories: str) -> pl.Expr:
    chosen = pl.col("category").cast(pl.String).is_in(categories)
    return pl.col("ns").filter(chosen).sum()


def _by_step(phases: Phases) -> pl.DataFrame:
    """Return the mean rank's communication of each step."""
    inside = pl.col("step") >= 0
    spent = phases.times.filter(inside).group_by("step")
    exposed = spent.agg(wait_ns=_spent("wait", "ps_queue"), transfer_ns=_spent("transfer"))
    hidden = phases.hidden.filter(inside).group_by("step")
    joined = hidden.agg(hidden_ns=pl.col("ns").sum(), ranks=pl.len()).join(exposed, on="step")
    means = (pl.col(name) / pl.col("ranks") for name in ("hidden_ns", "wait_ns", "transfer_ns"))
    return joined.select("step", *means).sort("step")


def _gap_spread(gaps: pl.DataFrame) -> pl.DataFrame:
    within = pl.when("within").then(pl.lit(WITHIN)).otherwise(pl.lit(BETWEEN))
    named = gaps.with_columns(of=within)
    return robust.log_histogram(named, "gap_ns", "of", ("rank", "start_ns", "gap_ns"))


def _overlap(phases: Phases) -> pl.DataFrame:
    ranks = phases.times.group_by("rank").agg(
        wait_ns=_spent("wait", "ps_queue"),
        transfer_ns=_spent("transfer"),
        backprop_ns=_spent("backprop"),
    )
    hidden = phases.hidden.group_by("rank").agg(hidden_ns=pl.col("ns").sum())
    joined = ranks.join(hidden, on="rank", how="left").with_columns(
        pl.col("hidden_ns").fill_null(0)
    )
    communication = pl.sum_horizontal("hidden_ns", "wait_ns", "transfer_ns")
    share = pl.when(communication > 0).then(pl.col("hidden_ns") / communication)
    return joined.with_columns(overlap=share).select(*OVERLAP_COLUMNS).sort("rank")


def _exposed(trace: Trace, phases: Phases, overlap: pl.DataFrame, saving: float) -> list[Finding]:
    """Report what could be overlapped, or, if that is little, that more than that is exposed."""
    job = job_ns(trace)
    if saving < WORTH_REPORTING:
        return _bound(trace, phases, job) if overlap["backprop_ns"].sum() else []
    transfer = int(overlap["transfer_ns"].sum()) / (overlap.height * job)
    mean = overlap["overlap"].mean()
    hidden = mean if isinstance(mean, float) else 0.0
    return [
        Finding.of(
            "exposed_communication",
            {"exposed": fmt.percent(transfer), "overlap": fmt.percent(hidden)},
            saving=saving,
            phase="reduction",
            evidence={"exposed_transfer": transfer, "overlap": hidden},
        )
    ]


def _bound(trace: Trace, phases: Phases, job: int) -> list[Finding]:
    """Report collectives that are too slow for the compute that they could overlap with."""
    steps = trace.steps["step"].unique().sort().to_numpy().astype(np.int64)
    share = float(exposed_transfer(phases, steps).sum()) / job
    if share < BOUND or trace.arrivals.is_empty():
        return []
    identifiable = bool((trace.messages["op"] == "send").any())
    unknown = (
        ""
        if identifiable
        else (
            " If one link is slow, collectives alone do not tell which; messages between ranks would."
        )
    )
    finding = Finding.of(
        "exposed_communication",
        {"exposed": fmt.percent(share), "link": unknown},
        case="bound",
        saving=share,
        phase="reduction",
        evidence={"exposed_transfer": share, "link_identifiable": identifiable},
    )
    return [finding]


def _between_updates(trace: Trace, gaps: pl.DataFrame, job: int) -> list[Finding]:
    """Return what lies between the updates of one step; a step is shorter only if all ranks close it."""
    within = gaps.filter("within")
    by_step = (
        within.group_by("step", "rank")
        .agg(pl.col("gap_ns").sum())
        .group_by("step")
        .agg(pl.col("gap_ns").min(), ranks=pl.len())
        .filter(pl.col("ranks") == trace.workers.height)
    )
    saving = int(by_step["gap_ns"].sum()) / job
    typical, long = within["gap_ns"].median(), within["gap_ns"].quantile(0.9)
    if saving < WORTH_REPORTING or not isinstance(typical, float) or not isinstance(long, float):
        return []
    return [
        Finding.of(
            "update_gap",
            {"median": fmt.duration(typical), "long": fmt.duration(long)},
            saving=saving,
            phase="update",
            evidence={"median_gap_ns": typical, "p90_gap_ns": long, "gaps": within.height},
        )
    ]


IS_COMPUTE: Final = np.array([name in COMPUTE_CATEGORIES for name in CATEGORIES])
BUCKET_COLUMNS: Final[dict[str, pl.DataType]] = {
    "bucket": pl.Int32(),
    "calls": pl.Int64(),  # of all ranks
    "bytes": pl.Float64(),  # median
    "hidden_ns": pl.Float64(),  # means of a call
    "wait_ns": pl.Float64(),
    "transfer_ns": pl.Float64(),
    "rank": pl.Int32(),  # of the call with most exposed, and when that was
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
}


def overlap_of_buckets(trace: Trace, phases: Phases) -> pl.DataFrame:
    """Return a row a bucket, in order; empty where calls name none."""
    known = pl.col("bucket").is_not_null() & pl.col("end_ns").is_not_null()
    calls = trace.arrivals.filter(known & pl.col("last_arrival_ns").is_not_null())
    most = (pl.col("wait_ns") + pl.col("transfer_ns")).arg_max()
    table = (
        _each_call(calls, phases)
        .group_by("bucket")
        .agg(
            pl.col("bytes").median(),
            pl.col("hidden_ns", "wait_ns", "transfer_ns").mean(),
            pl.col("rank", "start_ns", "end_ns").get(most),
            calls=pl.len(),
        )
    )
    return table.select(pl.col(name).cast(kind) for name, kind in BUCKET_COLUMNS.items()).sort(
        "bucket"
    )


def _each_call(calls: pl.DataFrame, phases: Phases) -> pl.DataFrame:
    """Add to each call how long it was hidden, waited and transferred, where its rank's time is cut."""
    calls = calls.sort("process", maintain_order=True)
    start, end, last = (
        calls[name].to_numpy() for name in ("start_ns", "end_ns", "last_arrival_ns")
    )
    arrived = np.clip(last, start, end)
    known, (early, delayed) = np.zeros(len(start), np.bool_), np.zeros((2, len(start)), np.int64)
    for mine, pieces in _of_each_process(calls["process"].to_numpy(), phases):
        known[mine] = True
        early[mine], delayed[mine] = _compute_between(pieces, start[mine], arrived[mine], end[mine])
    return calls.with_columns(
        hidden_ns=early + delayed,
        wait_ns=arrived - start - early,
        transfer_ns=end - arrived - delayed,
    ).filter(pl.Series(known))


def _of_each_process(process: Int32s, phases: Phases) -> Iterator[tuple[slice, WorkerPieces]]:
    """Yield where the calls of each process lie, and its pieces."""
    for pieces in phases.pieces:
        first, last = np.searchsorted(process, (pieces.process, pieces.process + 1)).tolist()
        if first < last:
            yield slice(first, last), pieces


def _compute_between(pieces: WorkerPieces, *moments: Ints) -> Ints:
    """Return a rank's compute time between each of the moments and the next of them."""
    first = int(pieces.bounds[0])
    length = np.where(IS_COMPUTE[pieces.category], np.diff(pieces.bounds), 0)
    until = np.concatenate([[0], np.cumsum(length)])
    at = [np.interp(moment - first, pieces.bounds - first, until) for moment in moments]
    return np.asarray(np.rint(np.diff(at, axis=0)), np.int64)
