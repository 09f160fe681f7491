"""Asynchronous training: no rank waits for the last one; a slow one is stale, or a server serializes.

Staleness of an update = updates that others made since the version that its worker had last read (Ho et
al. 2013). Waiting for a turn is the cost of a server that serves one worker after the other (You, Buluc,
Demmel 2017). docs/analyses/asynchrony.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.accounting.phases import job_ns
from tracelens.model import fmt
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.phases import Phases
    from tracelens.facts import Facts
    from tracelens.model.trace import Trace

# of the job: waiting for turns that costs less is not reported [policy]
MIN_SAVING_TO_REPORT_TURNS: Final = 0.05
# times: a stale worker has as many times the others' mean staleness [calibrate]
MIN_RATIO_OF_STALENESS: Final = 1.5
# versions: a stale worker is as many behind the others, in the mean [calibrate]
MIN_MORE_VERSIONS_IF_STALE: Final = 3
# blocks: a worker is stale if it is so in each; by chance it is once in 256 [calibrate]
BLOCKS_OF_UPDATES: Final = 8
MIN_UPDATES_OF_BLOCK: Final = 3  # updates: a worker with fewer in a block is not judged [calibrate]
# share of contributions: training is asynchronous if as many make an update of their own [calibrate]
MIN_SHARE_OF_OWN_UPDATES: Final = 0.9

WORKER_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "updates": pl.Int64(),  # while all workers train
    "rate": pl.Float64(),  # updates / the mean worker's
    "staleness": pl.Float64(),  # mean number of versions; null in a run that is synchronous
    "staleness_max": pl.Int64(),
    "turn_ns": pl.Int64(),  # waited for its turn
    "turn_share": pl.Float64(),  # of the job
}
_SENT: Final = ("push", "weights_up")
_MADE: Final = ("apply", "master_update")


@dataclass(frozen=True, eq=False)
class Asynchrony(DisplayMixin):
    """A row a worker; empty where workers take no turns and servers number no updates."""

    workers: pl.DataFrame
    findings: tuple[Finding, ...]


def run(facts: Facts) -> Asynchrony:
    """Measure staleness, fairness and waiting for turns."""
    trace, phases = facts.trace, facts.phases
    run_ns = job_ns(trace)
    updates = _find_updates(trace)
    turns = _sum_ns_by(trace.requests.lazy().filter(pl.col("op") == "turn_wait"), "rank")
    if not run_ns or (updates.is_empty() and turns.is_empty()):
        return Asynchrony(pl.DataFrame(schema=WORKER_COLUMNS), findings=())
    updates_of_rank = (
        updates.group_by("rank")
        .agg(
            updates=pl.len().cast(pl.Int64),
            staleness=pl.col("staleness").mean(),
            staleness_max=pl.col("staleness").max(),
        )
        .with_columns(rate=pl.col("updates") / pl.col("updates").mean())
    )
    workers = (
        trace.workers.select("rank")
        .unique()
        .join(updates_of_rank, on="rank", how="left")
        .join(turns, on="rank", how="left")
        .with_columns(turn_ns="ns", turn_share=pl.col("ns") / run_ns)
        .select(pl.col(name).cast(kind) for name, kind in WORKER_COLUMNS.items())
        .sort("rank")
    )
    stale_workers = _find_stale(updates, workers)
    findings = [
        *_report_turns(workers, trace, run_ns),
        *(_report_stale(worker, others, trace, phases) for worker, others in stale_workers),
    ]
    return Asynchrony(workers, tuple(findings))


def _find_updates(trace: Trace) -> pl.DataFrame:
    """Return a row per update, while all workers train, with rank and staleness; none if synchronous.

    Staleness is how many versions of the weights are between the one its worker read and the update.
    """
    op = pl.col("op").cast(pl.String)
    contributions, server_updates = (
        trace.select_requests(processes)
        .drop_nulls(["seq", "request"])
        .filter(op.is_in(operations))
        .select("request", "shard", "rank", "end_ns", version=pl.col("seq").cast(pl.Int64))
        .collect()
        for operations, processes in ((_SENT, trace.workers), (_MADE, trace.shards))
    )
    updates = server_updates.drop("rank").join(
        contributions.select("request", "rank", read_version="version").unique("request"),
        on="request",
    )
    if updates.height < MIN_SHARE_OF_OWN_UPDATES * contributions.height:
        updates = updates.clear()
    staleness = (pl.col("version") - 1 - pl.col("read_version")).clip(lower_bound=0)
    first_end_ns = updates.group_by("rank").agg(pl.col("end_ns").max())["end_ns"].min()
    if first_end_ns is not None:
        updates = updates.filter(pl.col("end_ns") <= first_end_ns)
    return updates.with_columns(staleness=staleness).sort("end_ns")


def _sum_ns_by(spans: pl.LazyFrame, key: str) -> pl.DataFrame:
    """Sum up how long spans took that were over, `ns`: a row for each value of the column `key`."""
    length_ns = pl.col("end_ns") - pl.col("start_ns")
    complete_spans = spans.filter(pl.col("end_ns").is_not_null())
    return complete_spans.group_by(key).agg(ns=length_ns.sum().cast(pl.Int64)).collect()


def _report_turns(workers: pl.DataFrame, trace: Trace, run_ns: int) -> list[Finding]:
    """Report what serving in turns costs: without turns, the job lasts as long as its busiest part.

    `workers` has one row each: its wait for its turn, `turn_ns`, also as a share of the job.
    """
    waiting_workers = workers.filter(pl.col("turn_ns") > 0)
    if waiting_workers.height < 2:
        return []
    # No order of serving is quicker than what the busiest server transferred and updated.
    served_requests = trace.select_requests(trace.shards).filter(pl.col("kind") == "elastic")
    busiest_ns = int(_to_float(_sum_ns_by(served_requests, "process")["ns"].max()))
    saved_ns = min(_to_float(waiting_workers["turn_ns"].min()), max(run_ns - busiest_ns, 0))
    if saved_ns / run_ns < MIN_SAVING_TO_REPORT_TURNS:
        return []
    share_waited = _to_float(waiting_workers["turn_share"].mean())
    return [
        Finding.of(
            "exposed_communication",
            {"share": f"{100 * share_waited:.0f} %"},
            case="turns",
            cost=share_waited * waiting_workers.height / workers.height,
            saving=saved_ns / run_ns,
            phase="elastic",
            evidence={"turn_share": share_waited, "workers": waiting_workers.height},
        )
    ]


def _find_stale(
    updates: pl.DataFrame, workers: pl.DataFrame
) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield workers whose updates are far staler all the time, and the others' mean staleness.

    `updates` has a row each, `workers` rows in `WORKER_COLUMNS`; staleness is a number of versions.
    """
    total_staleness, update_count = updates.select(pl.col("staleness").sum(), count=pl.len()).row(0)
    least_updates = BLOCKS_OF_UPDATES * MIN_UPDATES_OF_BLOCK
    for worker in workers.filter(pl.col("updates") >= least_updates).iter_rows(named=True):
        mean_staleness, other_updates = worker["staleness"], update_count - worker["updates"]
        if not other_updates:
            continue
        usual_staleness = (total_staleness - mean_staleness * worker["updates"]) / other_updates
        staleness = updates.filter(pl.col("rank") == worker["rank"])["staleness"].to_numpy()
        block_ends = len(staleness) * np.arange(1, BLOCKS_OF_UPDATES) // BLOCKS_OF_UPDATES
        is_lasting = all(
            block.mean() > usual_staleness for block in np.split(staleness, block_ends)
        )
        least_staleness = max(
            MIN_RATIO_OF_STALENESS * usual_staleness, usual_staleness + MIN_MORE_VERSIONS_IF_STALE
        )
        if mean_staleness >= least_staleness and is_lasting:
            yield worker, usual_staleness


def _report_stale(
    worker: dict[str, Any], usual_staleness: float, trace: Trace, phases: Phases
) -> Finding:
    """Report a stale worker (a row of `WORKER_COLUMNS`), its cause, and how much later the job ends."""
    rank, staleness, rate = worker["rank"], worker["staleness"], worker["rate"]
    process = int(trace.workers.filter(pl.col("rank") == rank)["process"][0])
    ends = trace.steps.group_by("process").agg(pl.col("end_ns").max())
    is_worker = pl.col("process") == process
    end_ns, others_end_ns = (
        _to_float(ends.filter(is_chosen)["end_ns"].max()) for is_chosen in (is_worker, ~is_worker)
    )
    saving = max(end_ns - others_end_ns, 0.0) / max(job_ns(trace), 1)
    phase, slowdown = _find_slow_category(phases, process)
    reason = f", since it takes {slowdown:.1f}x as long for {fmt.phase(phase)}" if phase else ""
    benefit = f", and fixing it would shorten the job by {fmt.percent(saving)}" if saving else ""
    return Finding.of(
        "stale_worker",
        {
            "rank": str(rank),
            "staleness": f"{staleness:.1f}",
            "others": f"{usual_staleness:.1f}",
            "rate": f"{rate:.1f}",
            "why": reason,
            "cost": benefit,
        },
        saving=saving,
        ranks=(rank,),
        phase=phase,
        pattern="persistent",
        slowdown=slowdown,
        evidence={"staleness": staleness, "others": usual_staleness, "rate": rate},
    )


def _find_slow_category(phases: Phases, process: int) -> tuple[str | None, float | None]:
    """Return the category in which a worker's step exceeds the others' most, and by what factor."""
    is_worker = pl.col("process") == process
    extra_ns = pl.col("own_ns") - pl.col("others_ns")
    longer_categories = (
        phases.times.filter(pl.col("category").cast(pl.String).is_in(OWN_CATEGORIES))
        .group_by("category")
        .agg(
            own_ns=pl.col("ns").filter(is_worker).median(),
            others_ns=pl.col("ns").filter(~is_worker).median(),
        )
        .filter(extra_ns > 0)
        .sort(extra_ns, pl.col("category").cast(pl.String), descending=[True, False])
    )
    if longer_categories.is_empty():
        return None, None
    longest = longer_categories.row(0, named=True)
    own_ns, others_ns = longest["own_ns"], longest["others_ns"]
    return str(longest["category"]), own_ns / others_ns if others_ns else None


def _to_float(value: object) -> float:
    """Return a number out of a frame; 0 where there was none."""
    return float(value) if isinstance(value, int | float) else 0.0
