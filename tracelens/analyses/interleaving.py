"""Interleaving: how much communication compute time hides, and what lies between optimizer updates.

With C the compute time and M the communication of a rank, hidden = |C and M|, exposed = |M without C|,
overlap = hidden / |M|. Waiting has its cause in another rank and is not counted again here. Buckets are
measured call by call (docs/analyses/overlap-and-gradient-latency.md).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES, COMPUTE_CATEGORIES
from tracelens.accounting.communication.pickled_calls import find_pickled_calls
from tracelens.accounting.phases import job_ns, measure_exposed_transfer_ns
from tracelens.model import fmt
from tracelens.model.calls import NEVER, distinct_columns
from tracelens.model.columns import NULL
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding
from tracelens.replay.edits.fixes import WorkFix
from tracelens.replay.pricing import price_edits, price_less_work
from tracelens.stats.histogram import log_histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.phases import Phases
    from tracelens.accounting.pieces import JoinedPieces, Segments
    from tracelens.accounting.weight_updates import WeightUpdates
    from tracelens.arrays import Floats, Ints
    from tracelens.facts import Facts
    from tracelens.model.calls import CallGrid
    from tracelens.model.trace import Trace

# of the job: overlap that saves less is not reported [policy]
MIN_SAVING_TO_REPORT_OVERLAP: Final = 0.05
# of the job: transfers that no computation can hide and that take less are not reported [policy]
MIN_SHARE_TO_REPORT_SLOW_TRANSFERS: Final = 0.2
# share of the transfer: with as much latency, fewer bytes hardly help [chosen]
MIN_LATENCY_SHARE_IF_FEWER_BYTES_USELESS: Final = 0.5
# of the job: gaps between updates that cost less are not reported [policy]
MIN_SAVING_TO_REPORT_UPDATE_GAPS: Final = 0.05
# share of gaps: a report shows the median and this quantile [policy]
QUANTILE_OF_LONG_GAPS: Final = 0.9

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
IS_COMPUTE: Final = np.array([name in COMPUTE_CATEGORIES for name in CATEGORIES])


@dataclass(frozen=True, eq=False)
class Interleaving(DisplayMixin):
    """Overlap per rank, step and bucket, gaps between updates, and what could be saved."""

    overlap: pl.DataFrame
    by_step: pl.DataFrame
    by_bucket: pl.DataFrame
    updates: WeightUpdates
    gap_spread: pl.DataFrame
    findings: tuple[Finding, ...]

    @property
    def gaps(self) -> pl.DataFrame:
        """What lies between updates, a row a gap, built at each access."""
        return self.updates.gap_table


def run(facts: Facts) -> Interleaving:
    """Measure overlap and gaps of the main workers."""
    trace, phases = facts.trace, facts.phases
    overlap, updates = _measure_overlap(phases), phases.weight_updates
    gap_kind = pl.when("within").then(pl.lit(WITHIN)).otherwise(pl.lit(BETWEEN))
    gaps = (table.with_columns(of=gap_kind) for table in updates.build_gap_tables())
    result = Interleaving(
        overlap=overlap,
        by_step=_average_by_step(phases),
        by_bucket=overlap_of_buckets(trace, phases),
        updates=updates,
        gap_spread=log_histogram(gaps, "gap_ns", "of", ("rank", "start_ns", "gap_ns")),
        findings=(),
    )
    run_ns = job_ns(trace)
    if not run_ns or overlap.is_empty() or trace.partial_communicators:
        return result  # of ranks that were left out neither waits nor gaps are known
    findings = [*_report_exposed(facts, overlap, run_ns), *_report_gaps(facts, run_ns)]
    return replace(result, findings=tuple(findings))


def _communication_ns(phases: Phases) -> dict[str, Ints]:
    """Return the communication of each rank in each step, ns, by column of `OVERLAP_COLUMNS`."""
    return {
        "hidden_ns": phases.hidden_communication_ns,
        "wait_ns": phases.sum_ns_by_window("wait", "ps_queue"),
        "transfer_ns": phases.sum_ns_by_window("transfer"),
    }


def _average_by_step(phases: Phases) -> pl.DataFrame:
    """Return a row per step, with the mean rank's communication, ns."""
    has_time = (phases.step_numbers >= 0) & (
        phases.sum_by_step(phases.window_has_time) > 0
    )  # [step]
    rank_counts = phases.sum_by_step(np.ones(len(phases.window_has_time)))[has_time]
    sums_ns = _communication_ns(phases)
    means_ns = {key: phases.sum_by_step(ns)[has_time] / rank_counts for key, ns in sums_ns.items()}
    steps = pl.Series(phases.step_numbers[has_time], dtype=pl.Int32)
    return pl.DataFrame({"step": steps, **means_ns})


def _measure_overlap(phases: Phases) -> pl.DataFrame:
    """Return the communication and overlap of each rank, in `OVERLAP_COLUMNS`."""
    ranks, row = np.unique(phases.pieces.step_windows["rank"].to_numpy(), return_inverse=True)
    has_time = np.bincount(row, phases.window_has_time, minlength=len(ranks)) > 0  # [rank]
    step_ns = _communication_ns(phases) | {"backprop_ns": phases.sum_ns_by_window("backprop")}
    sums_ns = {
        name: np.bincount(row, ns, minlength=len(ranks)).astype(np.int64)[has_time]
        for name, ns in step_ns.items()
    }
    communication_ns = pl.sum_horizontal("hidden_ns", "wait_ns", "transfer_ns")
    overlap = pl.when(communication_ns > 0).then(pl.col("hidden_ns") / communication_ns)
    by_rank = pl.DataFrame({"rank": ranks[has_time], **sums_ns}).with_columns(overlap=overlap)
    return by_rank.select(pl.col(name).cast(kind) for name, kind in OVERLAP_COLUMNS.items())


def _report_exposed(facts: Facts, overlap_of_ranks: pl.DataFrame, run_ns: int) -> list[Finding]:
    """Report what could be overlapped, or, if that is little, that more than that is exposed.

    `overlap_of_ranks` has one row per rank, with its exposed `transfer_ns` and hidden share
    (`overlap`).
    """
    exposed_share = int(overlap_of_ranks["transfer_ns"].sum()) / (overlap_of_ranks.height * run_ns)
    if exposed_share < MIN_SAVING_TO_REPORT_OVERLAP:
        return []
    price = price_edits(facts.replay, "overlap=on")
    if price.saving_share is None or price.saving_share < MIN_SAVING_TO_REPORT_OVERLAP:
        return _report_too_slow(facts, exposed_share, run_ns)
    pickled_calls = find_pickled_calls(facts.call_table)
    mean_overlap = overlap_of_ranks["overlap"].mean()
    hidden_share = mean_overlap if isinstance(mean_overlap, float) else 0.0
    return [
        Finding.of(
            "exposed_communication",
            {"exposed": fmt.percent(exposed_share), "overlap": fmt.percent(hidden_share)},
            saving=price.saving_share,
            interval=price.saving_interval,
            fix=price.fix,
            phase="reduction",
            more=[pickled_calls.sentence] if pickled_calls else [],
            evidence={
                "exposed_transfer": exposed_share,
                "overlap": hidden_share,
                "pickled": asdict(pickled_calls) if pickled_calls else None,
            },
        )
    ]


def _report_too_slow(facts: Facts, exposed_share: float, run_ns: int) -> list[Finding]:
    """Report communication that compute is too short to hide: `exposed_share` of the job."""
    trace, phases = facts.trace, facts.phases
    steps = trace.steps["step"].unique().sort().to_numpy().astype(np.int64)
    max_saving = float(measure_exposed_transfer_ns(phases, steps).sum()) / run_ns
    is_slow = max_saving >= MIN_SHARE_TO_REPORT_SLOW_TRANSFERS
    if not is_slow or not (trace.calls or trace.shards.height):
        return []
    is_link_known = not trace.calls or bool((trace.messages["op"] == "send").any())
    unknown_link = (
        " If one link is slow, collectives alone do not tell which; messages between ranks would."
    )
    latency_share, pickled_calls = (
        facts.call_costs.latency_share,
        find_pickled_calls(facts.call_table),
    )
    server_remedy = "fewer and larger messages, fewer bytes or faster links"
    return [
        Finding.of(
            "exposed_communication",
            {
                "exposed": fmt.percent(exposed_share),
                "remedy": _name_remedy(latency_share) if trace.calls else server_remedy,
                "link": "" if is_link_known else unknown_link,
            },
            case="bound",
            saving=max_saving,
            phase="reduction",
            more=[pickled_calls.sentence] if pickled_calls else [],
            evidence={
                "exposed_transfer": max_saving,
                "latency_share": latency_share,
                "pickled": asdict(pickled_calls) if pickled_calls else None,
                "link_identifiable": is_link_known,
            },
        )
    ]


def _name_remedy(latency: float | None) -> str:
    """Name what could make transfers shorter; `latency` is its share of them."""
    if latency is None:
        return (
            "fewer calls, fewer bytes or faster links (latency and bandwidth cannot be separated: "
            "sizes are equal or were not recorded)"
        )
    if latency >= MIN_LATENCY_SHARE_IF_FEWER_BYTES_USELESS:
        return f"fewer calls or lower latency (latency is {fmt.percent(latency)} of the transfer)"
    return "fewer bytes or faster links"


def _report_gaps(facts: Facts, run_ns: int) -> list[Finding]:
    """Report host time between the updates of one step, priced by the replay without it.

    Waits and transfers between updates are reported as exposed communication.
    """
    phases = facts.phases
    step_numbers = phases.step_numbers[phases.step_numbers >= 0]
    if len(step_numbers) < 2:
        return []
    gaps = pl.concat(table.filter("within") for table in phases.weight_updates.build_gap_tables())
    host_ns = _measure_host_time(facts.trace, phases, gaps, step_numbers)
    if float(host_ns.max(axis=1, initial=0.0).sum()) < MIN_SAVING_TO_REPORT_UPDATE_GAPS * run_ns:
        return []
    fix = WorkFix(
        step_numbers=step_numbers, phases_and_effects_ns=((("uninstrumented",), host_ns),)
    )
    price = price_less_work(facts.replay, fix, run_ns)
    median_gap_ns = gaps["gap_ns"].median()
    long_gap_ns = gaps["gap_ns"].quantile(QUANTILE_OF_LONG_GAPS)
    is_small = price.saving_share < MIN_SAVING_TO_REPORT_UPDATE_GAPS
    if is_small or not isinstance(median_gap_ns, float) or not isinstance(long_gap_ns, float):
        return []
    return [
        Finding.of(
            "update_gap",
            {"median": fmt.duration(median_gap_ns), "long": fmt.duration(long_gap_ns)},
            saving=price.saving_share,
            interval=price.saving_interval,
            fix=price.fix,
            phase="update",
            evidence={
                "median_gap_ns": median_gap_ns,
                "p90_gap_ns": long_gap_ns,
                "gaps": gaps.height,
            },
        )
    ]


def _measure_host_time(
    trace: Trace, phases: Phases, gaps: pl.DataFrame, step_numbers: Ints
) -> Floats:
    """Measure unrecorded code in gaps (rows) between updates, ns, [step, worker]."""
    ranks = trace.workers["rank"].to_numpy()
    step, rank, gap_ns = (gaps[name].to_numpy() for name in ("step", "rank", "gap_ns"))
    step_row = np.searchsorted(step_numbers, step)
    by_rank = np.argsort(ranks)
    worker = by_rank[np.searchsorted(ranks[by_rank], rank)]  # of each gap
    gaps_ns = np.zeros((len(step_numbers), len(ranks)))
    is_known = np.append(step_numbers, -1)[step_row] == step
    np.add.at(gaps_ns, (step_row[is_known], worker[is_known]), gap_ns[is_known])
    window = phases.find_windows(trace.workers["process"].to_numpy(), step_numbers[:, None])
    host_ns = np.where(window >= 0, phases.sum_ns_by_window("uninstrumented")[window], 0)
    return np.minimum(gaps_ns, host_ns)


def overlap_of_buckets(trace: Trace, phases: Phases) -> pl.DataFrame:
    """Return one row per bucket, in `BUCKET_COLUMNS`, in order; empty where calls name none.

    Times are means of a call. Rank, begin and end are those of the call that was exposed longest.
    """
    # One row per bucket and size of calls, see _sum_calls; `pieces` are what workers did, by time.
    sums_of_calls = [block for grid in trace.calls for block in _sum_calls(grid, phases.pieces)]
    if not sums_of_calls:
        return pl.DataFrame(schema=BUCKET_COLUMNS)
    call_sizes = pl.col("size").repeat_by("calls").explode()  # bytes of each call; < 0 = not known
    return (
        pl.concat(sums_of_calls)
        .sort("exposed_ns", "process", descending=[True, False], maintain_order=True)
        .group_by("bucket")
        .agg(
            pl.col("rank", "start_ns", "end_ns").first(),
            pl.col("hidden_ns", "wait_ns", "transfer_ns").sum() / pl.col("calls").sum(),
            pl.col("calls").sum(),
            bytes=call_sizes.filter(call_sizes >= 0).median(),
        )
        .sort("bucket")
        .select(pl.col(name).cast(kind) for name, kind in BUCKET_COLUMNS.items())
    )


def _sum_calls(grid: CallGrid, pieces: Segments) -> Iterator[pl.DataFrame]:
    """Yield sums over the calls of a communicator that name a bucket, and that all came to.

    A row is of a bucket and a `size` of calls, with the call that exposed most: its process, rank and
    times.
    """
    worker_of = {process: worker for worker, process in enumerate(pieces.processes)}
    is_counted = grid.is_completed & (grid.last_arrival_ns != NEVER)[:, None]  # [call, process]
    is_counted &= (distinct_columns(grid.bucket) != NULL) & np.isin(grid.processes, list(worker_of))
    columns = np.flatnonzero(is_counted.any(axis=0))
    workers = (worker_of[process] for process in grid.processes[columns].tolist())
    exposed_ns = pl.col("wait_ns") + pl.col("transfer_ns")
    for joined_pieces in pieces.join_workers(workers):
        some_columns, columns = np.split(columns, [len(joined_pieces.processes)])
        owner, call = np.nonzero(is_counted.T[some_columns])
        column = some_columns[owner]
        start_ns, end_ns = grid.start_ns[call, column], grid.end_ns[call, column]
        parts_ns = _divide_calls(joined_pieces, owner, start_ns, grid.last_arrival_ns[call], end_ns)
        calls = {
            "bucket": grid.bucket[call, column],
            "size": grid.nbytes[call, column],
            "process": grid.processes[column],
            "rank": grid.ranks[column],
            "start_ns": start_ns,
            "end_ns": end_ns,
            **dict(zip(("hidden_ns", "wait_ns", "transfer_ns"), parts_ns, strict=True)),
        }
        yield (
            pl.DataFrame(calls)
            .group_by("bucket", "size", maintain_order=True)
            .agg(
                pl.col("process", "rank", "start_ns", "end_ns").get(exposed_ns.arg_max()),
                pl.col("hidden_ns", "wait_ns", "transfer_ns").sum(),
                exposed_ns=exposed_ns.max(),
                calls=pl.len(),
            )
        )


def _divide_calls(
    pieces: JoinedPieces, owner: Ints, start_ns: Ints, last_ns: Ints, end_ns: Ints
) -> tuple[Ints, Ints, Ints]:
    """Divide calls into time that compute hides, wait, and transfer, ns, each [call], as all arrays.

    `owner` is each call's worker, as an index of the joined pieces; `last_ns` is the last arrival.
    """
    arrival_ns = np.clip(last_ns, start_ns, end_ns)
    positions = pieces.to_line_ns(np.stack([start_ns, arrival_ns, end_ns]), owner)
    compute_before_ns = pieces.sum_ns_before(IS_COMPUTE, positions)
    hidden_wait_ns, hidden_transfer_ns = np.rint(np.diff(compute_before_ns, axis=0)).astype(
        np.int64
    )
    wait_ns = arrival_ns - start_ns - hidden_wait_ns
    transfer_ns = end_ns - arrival_ns - hidden_transfer_ns
    return hidden_wait_ns + hidden_transfer_ns, wait_ns, transfer_ns
