"""Follows each gradient from the moment it is ready to the first use of what it changed, call by call.

A bucket is ready when its rank comes to the reduction; it is reduced from when the last rank has come
and the call before is through; its weights are updated by the update of its number, or, without numbers,
by those of the step; they are first used by the next step's forward pass. With parameter servers a
shard's part is ready when it is pushed, reduced while the shard aggregates, updated when that applies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from tracelens.trace import Trace

__all__ = ["STAGES", "follow"]

# In order; each begins where the one before ends.
STAGES: Final = ("waiting_ns", "reducing_ns", "until_update_ns", "updating_ns", "until_use_ns")
MOST_ROWS: Final = 250_000  # of longer runs every n-th step is followed
_AT: Final = ("process", "step")
_ROW: Final[dict[str, pl.DataType]] = {
    "of": pl.String(),
    "number": pl.Int32(),
    "process": pl.Int32(),
    "step": pl.Int32(),
    "ready": pl.Int64(),  # when the gradient was ready
    **dict.fromkeys(STAGES[:-1], pl.Int64()),
    "updated": pl.Int64(),  # when the update ended
}


def follow(trace: Trace) -> pl.DataFrame:
    """Return one row a rank, step and bucket or shard: `of`, `number`, `ready` and the stages, ns."""
    every = max(trace.arrivals.height // MOST_ROWS, 1)
    updates, used = _updates(trace, every), _first_use(trace, every)
    parts = (_buckets(trace, updates, every), _shards(trace))
    columns = [pl.col(name).cast(kind) for name, kind in _ROW.items()]
    rows = pl.concat([part.select(columns) for part in parts])
    return (
        rows.join(used, on=_AT, how="left")
        .with_columns(until_use_ns=pl.col("used") - pl.col("updated"))
        .drop("used", "updated")
    )


def _updates(trace: Trace, every: int) -> pl.DataFrame:
    """Return when each rank's weights are updated in a step, by bucket where updates carry one."""
    threads = trace.workers.select("process", thread="training_thread").lazy()
    spans = trace.spans.filter(
        pl.col("step") % every == 0, pl.col("kind") == "update", pl.col("end_ns").is_not_null()
    )
    return (
        spans.join(threads, on=["process", "thread"], how="semi")
        .group_by(*_AT, "bucket")
        .agg(begin=pl.col("start_ns").min(), end=pl.col("end_ns").max())
        .collect()
    )


def _first_use(trace: Trace, every: int) -> pl.DataFrame:
    """Return when the weights that a step leaves are first used."""
    forward = trace.spans.filter((pl.col("step") - 1) % every == 0, pl.col("kind") == "forward")
    return (
        forward.group_by(_AT)
        .agg(used=pl.col("start_ns").min())
        .with_columns(pl.col("step") - 1)
        .collect()
    )


def _buckets(trace: Trace, updates: pl.DataFrame, every: int) -> pl.DataFrame:
    calls = trace.arrivals.filter(
        pl.col("bucket").is_not_null(),
        pl.col("last_arrival_ns").is_not_null(),
        pl.col("end_ns").is_not_null(),
        pl.col("step") % every == 0,
    ).sort("process", "communicator", "seq")
    whole = updates.group_by(_AT).agg(begin=pl.col("begin").min(), end=pl.col("end").max())
    numbered = updates.filter(pl.col("bucket").is_not_null())
    own = numbered.height > 0
    joined = calls.join(
        numbered if own else whole, on=[*_AT, *(["bucket"] if own else [])], how="left"
    )
    before = pl.col("end_ns").shift(1).over("process", "communicator")
    free = pl.when(before < pl.col("end_ns")).then(before)
    begun = pl.max_horizontal("last_arrival_ns", free, "start_ns")
    return joined.select(
        *_AT,
        of=pl.lit("bucket"),
        number="bucket",
        ready="start_ns",
        waiting_ns=begun - pl.col("start_ns"),
        reducing_ns=pl.col("end_ns") - begun,
        until_update_ns=pl.col("begin") - pl.col("end_ns"),
        updating_ns=pl.col("end") - pl.col("begin"),
        updated="end",
    )


def _shards(trace: Trace) -> pl.DataFrame:
    """Return the way of pushes; times of workers and shards are on one clock."""
    op = pl.col("op").cast(pl.String)
    spans = trace.spans.filter((pl.col("kind") == "ps") & pl.col("end_ns").is_not_null())
    pushes = (
        spans.filter(op == "push")
        .join(trace.workers.select("process").lazy(), on="process", how="semi")
        .select(*_AT, "shard", "request", ready="start_ns")
    )
    served = spans.filter(op == "aggregate").select("request", begun="start_ns", done="end_ns")
    applied = (
        spans.filter(op == "apply")
        .group_by("shard", "step")
        .agg(begin=pl.col("start_ns").min(), end=pl.col("end_ns").max())
    )
    return (
        pushes.join(served, on="request", how="inner")
        .join(applied, on=["shard", "step"], how="left")
        .select(
            *_AT,
            of=pl.lit("shard"),
            number="shard",
            ready="ready",
            waiting_ns=pl.col("begun") - pl.col("ready"),
            reducing_ns=pl.col("done") - pl.col("begun"),
            until_update_ns=(pl.col("begin") - pl.col("done")).clip(lower_bound=0),
            updating_ns=pl.col("end") - pl.col("begin"),
            updated="end",
        )
        .collect()
    )
