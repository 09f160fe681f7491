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
from tracelens.model.calls import NEVER
from tracelens.model.columns import FOREVER, NULL
from tracelens.model.findings import Finding
from tracelens.replay.collectives import hideable_transfer
from tracelens.stats import robust

if TYPE_CHECKING:
    from tracelens.accounting.phases import Phases
    from tracelens.accounting.pieces import WorkerPieces
    from tracelens.arrays import Ints
    from tracelens.model.calls import CallGrid
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


def _by_step(phases: Phases) -> pl.DataFrame:
    """Return the mean rank's communication of each step."""
    ranks = phases.by_step(phases.there)
    there = (phases.steps >= 0) & (ranks > 0)
    windows = phases.by_step(np.ones(len(phases.there)))[there]
    sums = {
        "hidden_ns": phases.hidden_ns,
        "wait_ns": phases.of("wait", "ps_queue"),
        "transfer_ns": phases.of("transfer"),
    }
    means = {name: phases.by_step(values)[there] / windows for name, values in sums.items()}
    steps = pl.Series(phases.steps[there], dtype=pl.Int32)
    return pl.DataFrame({"step": steps, **means})


def _gap_spread(gaps: pl.DataFrame) -> pl.DataFrame:
    within = pl.when("within").then(pl.lit(WITHIN)).otherwise(pl.lit(BETWEEN))
    named = gaps.with_columns(of=within)
    return robust.log_histogram(named, "gap_ns", "of", ("rank", "start_ns", "gap_ns"))


def _overlap(phases: Phases) -> pl.DataFrame:
    rank = phases.pieces.steps["rank"].to_numpy()
    known, place = np.unique(rank, return_inverse=True)
    there = np.bincount(place, phases.there, minlength=len(known)) > 0
    sums = {
        "hidden_ns": phases.hidden_ns,
        "wait_ns": phases.of("wait", "ps_queue"),
        "transfer_ns": phases.of("transfer"),
        "backprop_ns": phases.of("backprop"),
    }
    columns = {
        name: np.bincount(place, values, minlength=len(known)).astype(np.int64)[there]
        for name, values in sums.items()
    }
    communication = pl.sum_horizontal("hidden_ns", "wait_ns", "transfer_ns")
    share = pl.when(communication > 0).then(pl.col("hidden_ns") / communication)
    table = pl.DataFrame({"rank": known[there], **columns}).with_columns(overlap=share)
    return table.select(pl.col(name).cast(kind) for name, kind in OVERLAP_COLUMNS.items())


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
    if share < BOUND or not trace.calls:
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
    place = {process: at for at, process in enumerate(phases.pieces.processes)}
    parts = [pl.DataFrame(schema=_PART_COLUMNS)]
    for process in sorted(place):
        for grid in trace.calls:
            for column in np.flatnonzero(grid.processes == process).tolist():
                calls = _calls_of(grid, column)
                if calls["bucket"].len():
                    parts.append(_of_rank(calls, phases.pieces.of_worker(place[process])))
    most = pl.col("most_ns").arg_max()
    table = (
        pl.concat(parts)
        .group_by("bucket", maintain_order=True)
        .agg(
            pl.col("bytes").explode().median(),
            *(pl.col(name).sum() / pl.col("calls").sum() for name in _SUMMED),
            pl.col("rank", "start_ns", "end_ns").get(most),
            pl.col("calls").sum(),
        )
    )
    return table.select(pl.col(name).cast(kind) for name, kind in BUCKET_COLUMNS.items()).sort(
        "bucket"
    )


_SUMMED: Final = ("hidden_ns", "wait_ns", "transfer_ns")
_PART_COLUMNS: Final[dict[str, pl.DataType]] = {
    "bucket": pl.Int32(),
    "calls": pl.Int64(),
    "bytes": pl.List(pl.Int64()),
    **dict.fromkeys(_SUMMED, pl.Int64()),
    "most_ns": pl.Int64(),  # exposed in one call
    "rank": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
}


def _calls_of(grid: CallGrid, column: int) -> pl.DataFrame:
    """Return the calls of one rank that name a bucket, and that all came to."""
    bucket, end = grid.bucket[:, column], grid.end_ns[:, column]
    start, nbytes = grid.start_ns[:, column], grid.nbytes[:, column]
    known = (bucket != NULL) & (end != FOREVER) & (start != NEVER) & (grid.last_ns != NEVER)
    sizes = pl.Series("bytes", nbytes[known])
    return pl.DataFrame(
        {
            "bucket": bucket[known],
            "bytes": pl.select(pl.when(sizes >= 0).then(sizes)).to_series(),
            "rank": pl.Series([int(grid.ranks[column])]).new_from_index(0, int(known.sum())),
            "start_ns": start[known],
            "end_ns": end[known],
            "last_ns": grid.last_ns[known],
        }
    )


def _of_rank(calls: pl.DataFrame, pieces: WorkerPieces) -> pl.DataFrame:
    """Sum up by bucket how long the calls of a rank were hidden, waited and transferred."""
    start, end, last = (calls[name].to_numpy() for name in ("start_ns", "end_ns", "last_ns"))
    arrived = np.clip(last, start, end)
    early, delayed = _compute_between(pieces, start, arrived, end)
    each = calls.with_columns(
        hidden_ns=early + delayed,
        wait_ns=arrived - start - early,
        transfer_ns=end - arrived - delayed,
    ).with_columns(most_ns=pl.col("wait_ns") + pl.col("transfer_ns"))
    most = pl.col("most_ns").arg_max()
    return (
        each.group_by("bucket", maintain_order=True)
        .agg(
            pl.len().alias("calls"),
            "bytes",
            pl.col(_SUMMED).sum(),
            pl.col("most_ns").max(),
            pl.col("rank", "start_ns", "end_ns").get(most),
        )
        .select(pl.col(name).cast(kind) for name, kind in _PART_COLUMNS.items())
    )


def _compute_between(pieces: WorkerPieces, *moments: Ints) -> Ints:
    """Return a rank's compute time between each of the moments and the next of them."""
    first = int(pieces.bounds[0])
    length = np.where(IS_COMPUTE[pieces.category], np.diff(pieces.bounds), 0)
    until = np.concatenate([[0], np.cumsum(length)])
    at = [np.interp(moment - first, pieces.bounds - first, until) for moment in moments]
    return np.asarray(np.rint(np.diff(at, axis=0)), np.int64)
