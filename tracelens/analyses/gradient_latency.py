"""Gradient latency: from each gradient's being ready to the first use of the weights that it changed.

Buckets are followed by their calls, and pushes to servers by their requests
(docs/analyses/overlap-and-gradient-latency.md). An update belongs to a push that it names, else to the
other workers' push of the same number, step and variable, else to all of the step. A stage that would
end before it begins was not recorded, and is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.weight_updates import find_step_interval
from tracelens.model.calls import NEVER, distinct_columns
from tracelens.model.columns import FOREVER, NULL
from tracelens.model.display import DisplayMixin

if TYPE_CHECKING:
    from tracelens.accounting.phases import Phases
    from tracelens.facts import Facts
    from tracelens.model.calls import CallGrid
    from tracelens.model.findings import Finding
    from tracelens.model.trace import Trace

MAX_CHAINS_SHOWN: Final = 64  # rows: a report has no more chains of gradients [policy]

CHAIN_COLUMNS: Final[dict[str, pl.DataType]] = {
    "of": pl.String(),  # bucket or shard
    "number": pl.Int32(),
    "chains": pl.Int64(),  # followed: ranks x steps
    "waiting_ns": pl.Int64(),  # medians: ready, but not all arrived, or the wire or shard is not free
    "reducing_ns": pl.Int64(),
    "until_update_ns": pl.Int64(),  # reduced, but not yet being applied
    "updating_ns": pl.Int64(),
    "until_use_ns": pl.Int64(),  # until the next step's forward pass begins
    "whole_ns": pl.Int64(),  # from ready to use
    "whole_p90_ns": pl.Int64(),
}
SHOWN_COLUMNS: Final[dict[str, pl.DataType]] = CHAIN_COLUMNS | {  # what pages draw besides
    "ready_ns": pl.Int64(),  # after the first gradient of the rank and step, median
    "rank": pl.Int32(),  # of the longest chain
    "step": pl.Int32(),
}
# In order; each begins where the one before ends.
STAGES: Final = ("waiting_ns", "reducing_ns", "until_update_ns", "updating_ns", "until_use_ns")
_STEP: Final = ("process", "step")
_SAME_PUSH: Final = ("shard", "step", "key", "number")
# A reduction is over when the update begins that needs it, though its end may have been noticed later;
# an update that began before the reduction did (around other work) takes it up when it is reduced.
_REDUCED_NS: Final = (
    pl.when(pl.col("update_begin_ns") >= pl.col("reduction_begin_ns"))
    .then(pl.min_horizontal("update_begin_ns", "reduction_end_ns"))
    .otherwise("reduction_end_ns")
)
_TAKEN_UP_NS: Final = pl.when(pl.col("update_end_ns") >= _REDUCED_NS).then(
    pl.max_horizontal("update_begin_ns", _REDUCED_NS)
)
_NO_CALLS: Final = pl.DataFrame(
    schema={
        **dict.fromkeys((*_STEP, "bucket"), pl.Int32()),
        **dict.fromkeys(("ready_at_ns", "reduction_begin_ns", "reduction_end_ns"), pl.Int64()),
    }
)


@dataclass(frozen=True, eq=False)
class GradientLatency(DisplayMixin):
    """`chains`: a row a bucket or shard."""

    chains: pl.DataFrame
    findings: tuple[Finding, ...] = ()

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """The longest chains, which a report shows."""
        chains = self.chains.select(*CHAIN_COLUMNS)
        longest = chains.sort("whole_ns", descending=True, nulls_last=True)
        return {"chains": longest.head(MAX_CHAINS_SHOWN)}


def run(facts: Facts) -> GradientLatency:
    """Follow all gradients, and take the medians of their stages."""
    ranks = facts.trace.workers.select("process", "rank")
    first_ready_ns = pl.col("ready_at_ns").min().over("process", "step", "of")
    medians = pl.col("ready_ns", *STAGES, "whole_ns").median().round()
    longest = pl.col("whole_ns").fill_null(-1).arg_max()
    chains = (
        _follow_gradients(facts.trace, facts.phases)
        .join(ranks, on="process", how="left", maintain_order="left")
        .with_columns(
            whole_ns=pl.sum_horizontal(STAGES, ignore_nulls=False),
            ready_ns=pl.col("ready_at_ns") - first_ready_ns,
        )
        .group_by("of", "number")
        .agg(
            medians,
            pl.col("rank", "step").get(longest),
            chains=pl.len(),
            whole_p90_ns=pl.col("whole_ns").quantile(0.9).round(),
        )
        .select(pl.col(name).cast(kind) for name, kind in SHOWN_COLUMNS.items())
        .sort("of", "number")
    )
    return GradientLatency(chains)


def _follow_gradients(trace: Trace, phases: Phases) -> pl.DataFrame:
    """Return a row per rank, step and bucket or shard (`of`, `number`): `ready_at_ns` and `STAGES`."""
    buckets = _follow_buckets(trace, phases.weight_updates.updates, find_step_interval(trace))
    is_used = pl.col("used_ns").is_not_null()
    first_use_ns = pl.when(is_used).then(pl.max_horizontal("used_ns", "returned_ns"))
    return (
        pl.concat((buckets, _follow_pushes(trace)), how="vertical_relaxed")
        .join(phases.weight_updates.used.rename({"used": "used_ns"}), on=_STEP, how="left")
        .with_columns(until_use_ns=first_use_ns - pl.col("updated_ns"))
        .with_columns(pl.when(pl.col(name) >= 0).then(name) for name in STAGES)
        .drop("used_ns", "updated_ns", "returned_ns")
    )


def _follow_buckets(trace: Trace, updates: pl.DataFrame, step_interval: int) -> pl.DataFrame:
    """Return the columns of `_measure_stages` for the buckets of every n-th step (`step_interval`).

    There is a row per bucket, step and process. `returned_ns` is null: only parameter servers return
    anything.

    Args:
        trace: The run.
        updates: Optimizer updates, a row per process, step and bucket. Where no update names a bucket,
            all updates of a step are those of each of its buckets.
        step_interval: Only steps whose number is a multiple of it are followed.
    """
    updates = updates.rename({"begin": "update_begin_ns", "end": "update_end_ns"})
    bucket_updates = updates.filter(pl.col("bucket").is_not_null())
    calls = pl.concat([_NO_CALLS, *(_list_calls(grid, step_interval) for grid in trace.calls)])
    calls = calls.sort("process", maintain_order=True)
    if bucket_updates.height:
        with_updates = calls.join(bucket_updates, on=[*_STEP, "bucket"], how="left")
    else:
        update_bounds_ns = pl.min("update_begin_ns"), pl.max("update_end_ns")
        step_updates = updates.group_by(_STEP).agg(update_bounds_ns)
        with_updates = calls.join(step_updates, on=_STEP, how="left")
    return with_updates.select(*_measure_stages("bucket"), returned_ns=None)


def _measure_stages(owner: str) -> list[pl.Expr]:
    """Return the lengths of the stages (`STAGES`) of the gradients of buckets or shards (`owner`), ns.

    The columns `ready_at_ns` and `updated_ns` are times: when they began and when their update ended.
    """
    return [
        *map(pl.col, _STEP),
        pl.lit(owner).alias("of"),
        pl.col(owner).alias("number"),
        pl.col("ready_at_ns"),
        # Nothing comes before it was sent: what clocks are apart by is no time.
        (pl.col("reduction_begin_ns") - pl.col("ready_at_ns"))
        .clip(lower_bound=0)
        .alias("waiting_ns"),
        (_REDUCED_NS - pl.col("reduction_begin_ns")).alias("reducing_ns"),
        (_TAKEN_UP_NS - _REDUCED_NS).alias("until_update_ns"),
        (pl.col("update_end_ns") - _TAKEN_UP_NS).alias("updating_ns"),
        pl.col("update_end_ns").alias("updated_ns"),
    ]


def _list_calls(grid: CallGrid, step_interval: int) -> pl.DataFrame:
    """Return a row (`_NO_CALLS`) per process and call of a bucket, in every n-th step.

    A bucket is ready when its process enters the call; its reduction begins when all have entered it and
    the wire is free. Matrices are [call, process]; where all processes agree, as mostly on the step,
    `distinct_columns` leaves one column.
    """
    calls = grid.take_calls(
        np.flatnonzero((distinct_columns(grid.step) % step_interval == 0).any(axis=1))
    )
    is_known = calls.is_made & (calls.end_ns != FOREVER) & (calls.last_arrival_ns != NEVER)[:, None]
    is_chosen = distinct_columns(calls.step) % step_interval == 0
    is_known &= (distinct_columns(calls.bucket) != NULL) & is_chosen  # [call, process]
    column, row = np.nonzero(is_known.T)  # by process, then call
    start_ns, end_ns, step, bucket = (
        matrix[row, column] for matrix in (calls.start_ns, calls.end_ns, calls.step, calls.bucket)
    )
    begin_ns = np.maximum(calls.last_arrival_ns[row], start_ns)
    # The wire is free when the call before of the process is over, if that is before this one is.
    is_after = (column[1:] == column[:-1]) & (end_ns[:-1] < end_ns[1:])
    rows_after = np.flatnonzero(is_after) + 1
    begin_ns[rows_after] = np.maximum(begin_ns[rows_after], end_ns[rows_after - 1])
    columns = (calls.processes[column], step, bucket, start_ns, begin_ns, end_ns)
    return pl.DataFrame(dict(zip(_NO_CALLS.columns, columns, strict=True))).cast(_NO_CALLS.schema)


def _follow_pushes(trace: Trace) -> pl.DataFrame:
    """Follow pushes to servers, a row each; times of workers and shards are on one clock."""
    op = pl.col("op").cast(pl.String)
    spans = (
        trace.requests.lazy()
        .filter((pl.col("kind") == "ps") & pl.col("end_ns").is_not_null())
        .with_columns(pl.col("key").fill_null(-1))
    )
    worker_requests = spans.join(trace.workers.select("process").lazy(), on="process", how="semi")
    pushes = worker_requests.filter(op == "push").with_columns(
        ready_at_ns="start_ns",
        number=pl.col("start_ns").rank("ordinal").over("process", "shard", "step", "key"),
    )
    gradients = spans.filter(op == "aggregate").select(
        "request", reduction_begin_ns="start_ns", reduction_end_ns="end_ns"
    )
    return (
        _add_updates(pushes.join(gradients, on="request", how="inner"), spans.filter(op == "apply"))
        .pipe(_add_return, spans.filter(op == "reply"), worker_requests.filter(op == "pull"))
        .select(*_measure_stages("shard"), "returned_ns")
        .collect()
    )


def _add_updates(pushes: pl.LazyFrame, updates: pl.LazyFrame) -> pl.LazyFrame:
    """Add when the update that each push (a row) went into began and ended; `updates` has a row each.

    The update is the one that names the push, else that of another worker's push of the same number,
    step and variable, else all of the step (docs/analyses/overlap-and-gradient-latency.md).
    """
    begin_ns, end_ns = pl.col("start_ns").min(), pl.col("end_ns").max()
    has_request = pl.col("request").is_not_null()
    by_request = (
        updates.filter(has_request)
        .group_by("request")
        .agg(update_begin_ns=begin_ns, update_end_ns=end_ns)
    )
    by_push = (
        by_request.join(pushes.select("request", *_SAME_PUSH), on="request", how="inner")
        .group_by(_SAME_PUSH)
        .agg(pl.col("update_begin_ns", "update_end_ns").min().name.prefix("other_"))
    )
    by_step = (
        updates.filter(~has_request)
        .group_by("shard", "step")
        .agg(step_update_begin_ns=begin_ns, step_update_end_ns=end_ns)
    )
    return (
        pushes.join(by_request, on="request", how="left")
        .join(by_push, on=_SAME_PUSH, how="left")
        .join(by_step, on=["shard", "step"], how="left")
        .with_columns(
            pl.coalesce(name, f"other_{name}", f"step_{name}").alias(name)
            for name in ("update_begin_ns", "update_end_ns")
        )
    )


def _add_return(pushes: pl.LazyFrame, replies: pl.LazyFrame, pulls: pl.LazyFrame) -> pl.LazyFrame:
    """Add when the worker had the new weights (`returned_ns`): with the push's reply, or the next pull.

    All three have a row per request; the pull is the first that ends after the push's update.
    """
    answered_requests = replies.select("request", answered=True).unique("request")
    next_pulls = pulls.select("process", "shard", "key", pulled_ns="end_ns").sort("pulled_ns")
    return (
        pushes.join(answered_requests, on="request", how="left")
        .sort("update_end_ns")
        .join_asof(
            next_pulls,
            left_on="update_end_ns",
            right_on="pulled_ns",
            by=["process", "shard", "key"],
            strategy="forward",
            check_sortedness=False,
        )
        .with_columns(returned_ns=pl.when("answered").then("end_ns").otherwise("pulled_ns"))
    )
