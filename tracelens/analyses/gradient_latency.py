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

from tracelens.accounting.weight_updates import find_follow_interval
from tracelens.model.calls import NEVER, distinct
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
    pl.when(pl.col("begin") >= pl.col("begun"))
    .then(pl.min_horizontal("begin", "done"))
    .otherwise("done")
)
_TAKEN_UP_NS: Final = pl.when(pl.col("end") >= _REDUCED_NS).then(
    pl.max_horizontal("begin", _REDUCED_NS)
)
_NO_CALLS: Final = pl.DataFrame(
    schema={
        **dict.fromkeys((*_STEP, "bucket"), pl.Int32()),
        **dict.fromkeys(("ready", "begun", "done"), pl.Int64()),
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
    first_ready = pl.col("ready").min().over("process", "step", "of")
    medians = pl.col("ready_ns", *STAGES, "whole_ns").median().round()
    longest = pl.col("whole_ns").fill_null(-1).arg_max()
    chains = (
        _follow_gradients(facts.trace, facts.phases)
        .join(ranks, on="process", how="left", maintain_order="left")
        .with_columns(
            whole_ns=pl.sum_horizontal(STAGES, ignore_nulls=False),
            ready_ns=pl.col("ready") - first_ready,
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
    """Return one row a rank, step and bucket or shard: `of`, `number`, `ready` and the stages, ns."""
    buckets = _follow_buckets(trace, phases.updates.updates, find_follow_interval(trace))
    first_use = pl.when(pl.col("used").is_not_null()).then(pl.max_horizontal("used", "back"))
    return (
        pl.concat((buckets, _follow_pushes(trace)), how="vertical_relaxed")
        .join(phases.updates.used, on=_STEP, how="left")
        .with_columns(until_use_ns=first_use - pl.col("updated"))
        .with_columns(pl.when(pl.col(name) >= 0).then(name) for name in STAGES)
        .drop("used", "updated", "back")
    )


def _follow_buckets(trace: Trace, updates: pl.DataFrame, step_interval: int) -> pl.DataFrame:
    """Follow buckets of one in some steps, a row each; an update is of a bucket, or of its step."""
    bucket_updates = updates.filter(pl.col("bucket").is_not_null())
    calls = pl.concat([_NO_CALLS, *(_list_calls(grid, step_interval) for grid in trace.calls)])
    calls = calls.sort("process", maintain_order=True)
    if bucket_updates.height:
        with_updates = calls.join(bucket_updates, on=[*_STEP, "bucket"], how="left")
    else:
        step_updates = updates.group_by(_STEP).agg(pl.col("begin").min(), pl.col("end").max())
        with_updates = calls.join(step_updates, on=_STEP, how="left")
    return with_updates.select(*_measure_stages("bucket"), back=None)


def _measure_stages(of: str) -> list[pl.Expr]:
    """Return the stages of buckets or shards, and when their update ended."""
    return [
        *map(pl.col, _STEP),
        pl.lit(of).alias("of"),
        pl.col(of).alias("number"),
        pl.col("ready"),
        # Nothing comes before it was sent: what clocks are apart by is no time.
        (pl.col("begun") - pl.col("ready")).clip(lower_bound=0).alias("waiting_ns"),
        (_REDUCED_NS - pl.col("begun")).alias("reducing_ns"),
        (_TAKEN_UP_NS - _REDUCED_NS).alias("until_update_ns"),
        (pl.col("end") - _TAKEN_UP_NS).alias("updating_ns"),
        pl.col("end").alias("updated"),
    ]


def _list_calls(grid: CallGrid, step_interval: int) -> pl.DataFrame:
    """Return a row per process and call of one in some steps: when it was ready, begun and done."""
    some_calls = grid.take(np.flatnonzero((distinct(grid.step) % step_interval == 0).any(axis=1)))
    is_known = (
        some_calls.took_part
        & (some_calls.end_ns != FOREVER)
        & (some_calls.last_ns != NEVER)[:, None]
    )
    is_chosen = distinct(some_calls.step) % step_interval == 0
    is_known &= (distinct(some_calls.bucket) != NULL) & is_chosen
    column, row = np.nonzero(is_known.T)
    start_ns, end_ns, step, bucket = (
        matrix[row, column]
        for matrix in (some_calls.start_ns, some_calls.end_ns, some_calls.step, some_calls.bucket)
    )
    begun_ns = np.maximum(some_calls.last_ns[row], start_ns)
    # The wire is free when the call before of the process is over, if that is before this one is.
    is_after = (column[1:] == column[:-1]) & (end_ns[:-1] < end_ns[1:])
    rows_after = np.flatnonzero(is_after) + 1
    begun_ns[rows_after] = np.maximum(begun_ns[rows_after], end_ns[rows_after - 1])
    columns = (some_calls.processes[column], step, bucket, start_ns, begun_ns, end_ns)
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
        ready="start_ns",
        number=pl.col("start_ns").rank("ordinal").over("process", "shard", "step", "key"),
    )
    gradients = spans.filter(op == "aggregate").select("request", begun="start_ns", done="end_ns")
    return (
        _add_updates(pushes.join(gradients, on="request", how="inner"), spans.filter(op == "apply"))
        .pipe(_add_return, spans.filter(op == "reply"), worker_requests.filter(op == "pull"))
        .select(*_measure_stages("shard"), "back")
        .collect()
    )


def _add_updates(pushes: pl.LazyFrame, updates: pl.LazyFrame) -> pl.LazyFrame:
    """Add `begin` and `end` of the update that each push (a row) went into, from rows of updates."""
    begin_ns, end_ns = pl.col("start_ns").min(), pl.col("end_ns").max()
    has_request = pl.col("request").is_not_null()
    by_request = updates.filter(has_request).group_by("request").agg(begin=begin_ns, end=end_ns)
    by_push = (
        by_request.join(pushes.select("request", *_SAME_PUSH), on="request", how="inner")
        .group_by(_SAME_PUSH)
        .agg(other_begin=pl.col("begin").min(), other_end=pl.col("end").min())
    )
    by_step = (
        updates.filter(~has_request)
        .group_by("shard", "step")
        .agg(step_begin=begin_ns, step_end=end_ns)
    )
    return (
        pushes.join(by_request, on="request", how="left")
        .join(by_push, on=_SAME_PUSH, how="left")
        .join(by_step, on=["shard", "step"], how="left")
        .with_columns(
            pl.coalesce(name, f"other_{name}", f"step_{name}").alias(name)
            for name in ("begin", "end")
        )
    )


def _add_return(pushes: pl.LazyFrame, replies: pl.LazyFrame, pulls: pl.LazyFrame) -> pl.LazyFrame:
    """Add to pushes when the worker had the new weights: with its own reply, or with the next pull."""
    answered_requests = replies.select("request", answered=True).unique("request")
    next_pulls = pulls.select("process", "shard", "key", pulled="end_ns").sort("pulled")
    return (
        pushes.join(answered_requests, on="request", how="left")
        .sort("end")
        .join_asof(
            next_pulls,
            left_on="end",
            right_on="pulled",
            by=["process", "shard", "key"],
            strategy="forward",
            check_sortedness=False,
        )
        .with_columns(back=pl.when("answered").then("end_ns").otherwise("pulled"))
    )
