"""Gradient latency: from each gradient's being ready to the first use of the weights that it changed.

Gradients are followed call by call. A bucket is ready when its rank arrives at the reduction; it is
reduced from when the last rank has arrived and the call before is over; its weights are updated by the
update of its number, or, without numbers, by those of the step; they are first used by the next step's
forward pass. With parameter servers a shard's part is ready when it is pushed, reduced while the shard
aggregates, updated when that applies: the update that carries the push's request, or that of the other
workers' push of the same number, of this step and variable, or else the shard's update of the step.
Where that pass begins before the weights are back (servers that are pipelined or asynchronous), they are
first used when they are. A stage that would end before it begins was not recorded, and is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.weight_updates import followed
from tracelens.model.calls import NEVER, distinct
from tracelens.model.columns import FOREVER, NULL
from tracelens.model.display import DisplayMixin

if TYPE_CHECKING:
    from tracelens.accounting.phases import Phases
    from tracelens.facts import Facts
    from tracelens.model.calls import CallGrid
    from tracelens.model.findings import Finding
    from tracelens.model.trace import Trace

__all__ = ["SHOWN_COLUMNS", "GradientLatency", "run"]

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


@dataclass(frozen=True, eq=False)
class GradientLatency(DisplayMixin):
    """`chains`: a row a bucket or shard."""

    chains: pl.DataFrame
    findings: tuple[Finding, ...] = ()

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """The longest chains, which a report shows."""
        return {
            "chains": self.chains.select(*CHAIN_COLUMNS)
            .sort("whole_ns", descending=True, nulls_last=True)
            .head(MAX_CHAINS_SHOWN),
        }


def run(facts: Facts) -> GradientLatency:
    """Follow all gradients, and take the medians of their stages."""
    trace, phases = facts.trace, facts.phases
    rank = trace.workers.select("process", "rank")
    rows = _follow_gradients(trace, phases).join(
        rank, on="process", how="left", maintain_order="left"
    )
    first = pl.col("ready").min().over("process", "step", "of")
    rows = rows.with_columns(
        whole_ns=pl.sum_horizontal(STAGES, ignore_nulls=False),
        ready_ns=pl.col("ready") - first,
    )
    medians = pl.col("ready_ns", *STAGES, "whole_ns").median().round()
    longest = pl.col("rank", "step").get(pl.col("whole_ns").fill_null(-1).arg_max())
    table = (
        rows.group_by("of", "number")
        .agg(
            medians,
            longest,
            chains=pl.len(),
            whole_p90_ns=pl.col("whole_ns").quantile(0.9).round(),
        )
        .select(pl.col(name).cast(kind) for name, kind in SHOWN_COLUMNS.items())
        .sort("of", "number")
    )
    return GradientLatency(table)


# In order; each begins where the one before ends.
STAGES: Final = ("waiting_ns", "reducing_ns", "until_update_ns", "updating_ns", "until_use_ns")
_AT: Final = ("process", "step")
# A reduction is over when the update begins that needs it, though its end may have been noticed later;
# an update that began before the reduction did (around other work) takes it up when it is reduced.
_DONE: Final = (
    pl.when(pl.col("begin") >= pl.col("begun"))
    .then(pl.min_horizontal("begin", "done"))
    .otherwise("done")
)
_TAKEN_UP: Final = pl.when(pl.col("end") >= _DONE).then(pl.max_horizontal("begin", _DONE))


def _follow_gradients(trace: Trace, phases: Phases) -> pl.DataFrame:
    """Return one row a rank, step and bucket or shard: `of`, `number`, `ready` and the stages, ns."""
    parts = (_buckets(trace, phases.updates.updates, followed(trace)), _shards(trace))
    rows = pl.concat(parts, how="vertical_relaxed")
    used = pl.max_horizontal("used", "back")
    return (
        rows.join(phases.updates.used, on=_AT, how="left")
        .with_columns(
            until_use_ns=pl.when(pl.col("used").is_not_null()).then(used) - pl.col("updated")
        )
        .with_columns(pl.when(pl.col(name) >= 0).then(name) for name in STAGES)
        .drop("used", "updated", "back")
    )


def _buckets(trace: Trace, updates: pl.DataFrame, every: int) -> pl.DataFrame:
    whole = updates.group_by(_AT).agg(begin=pl.col("begin").min(), end=pl.col("end").max())
    numbered = updates.filter(pl.col("bucket").is_not_null())
    own = numbered.height > 0
    calls = pl.concat([_NO_CALLS, *(_reduced(grid, every) for grid in trace.calls)])
    joined = calls.sort("process", maintain_order=True).join(
        numbered if own else whole, on=[*_AT, *(["bucket"] if own else [])], how="left"
    )
    return joined.select(*_stages("bucket"), back=None)


def _stages(of: str) -> list[pl.Expr]:
    """Return the stages of buckets or shards, and when their update ended."""
    return [
        *map(pl.col, _AT),
        pl.lit(of).alias("of"),
        pl.col(of).alias("number"),
        pl.col("ready"),
        # Nothing comes before it was sent: what clocks are apart by is no time.
        (pl.col("begun") - pl.col("ready")).clip(lower_bound=0).alias("waiting_ns"),
        (_DONE - pl.col("begun")).alias("reducing_ns"),
        (_TAKEN_UP - _DONE).alias("until_update_ns"),
        (pl.col("end") - _TAKEN_UP).alias("updating_ns"),
        pl.col("end").alias("updated"),
    ]


_NO_CALLS: Final = pl.DataFrame(
    schema={
        **dict.fromkeys((*_AT, "bucket"), pl.Int32()),
        **dict.fromkeys(("ready", "begun", "done"), pl.Int64()),
    }
)


def _reduced(grid: CallGrid, every: int) -> pl.DataFrame:
    """Return when buckets of some steps were ready, begun and done; by process and call."""
    some = grid.taken(np.flatnonzero((distinct(grid.step) % every == 0).any(axis=1)))
    known = some.there & (some.end_ns != FOREVER) & (some.last_ns != NEVER)[:, None]
    known &= (distinct(some.bucket) != NULL) & (distinct(some.step) % every == 0)
    column, row = np.nonzero(known.T)
    cells = row, column
    start, end, step, bucket = (
        matrix[cells] for matrix in (some.start_ns, some.end_ns, some.step, some.bucket)
    )
    begun = np.maximum(some.last_ns[row], start)
    # The wire is free when the call before of the process is over, if that is before this one is.
    later = np.flatnonzero((column[1:] == column[:-1]) & (end[:-1] < end[1:])) + 1
    begun[later] = np.maximum(begun[later], end[later - 1])
    columns = (some.processes[column], step, bucket, start, begun, end)
    return pl.DataFrame(dict(zip(_NO_CALLS.columns, columns, strict=True))).cast(_NO_CALLS.schema)


_SAME: Final = ("shard", "step", "key", "number")


def _shards(trace: Trace) -> pl.DataFrame:
    """Return the way of pushes; times of workers and shards are on one clock."""
    op = pl.col("op").cast(pl.String)
    spans = (
        trace.requests.lazy()
        .filter((pl.col("kind") == "ps") & pl.col("end_ns").is_not_null())
        .with_columns(pl.col("key").fill_null(-1))
    )
    asked = spans.join(trace.workers.select("process").lazy(), on="process", how="semi")
    pushes = asked.filter(op == "push").with_columns(
        ready="start_ns",
        number=pl.col("start_ns").rank("ordinal").over("process", "shard", "step", "key"),
    )
    served = spans.filter(op == "aggregate").select("request", begun="start_ns", done="end_ns")
    followed_pushes = pushes.join(served, on="request", how="inner")
    return (
        _with_updates(followed_pushes, spans.filter(op == "apply"))
        .pipe(_with_return, spans.filter(op == "reply"), asked.filter(op == "pull"))
        .select(*_stages("shard"), "back")
        .collect()
    )


def _with_updates(pushes: pl.LazyFrame, applied: pl.LazyFrame) -> pl.LazyFrame:
    """Add `begin` and `end` of the update that each push went into."""
    bounds = {"begin": pl.col("start_ns").min(), "end": pl.col("end_ns").max()}
    own = applied.filter(pl.col("request").is_not_null()).group_by("request").agg(**bounds)
    numbers = pushes.select("request", *_SAME)
    named = own.join(numbers, on="request", how="inner")
    alike = named.group_by(_SAME).agg(
        other_begin=pl.col("begin").min(), other_end=pl.col("end").min()
    )
    of_step = (
        applied.filter(pl.col("request").is_null())
        .group_by("shard", "step")
        .agg(step_begin=bounds["begin"], step_end=bounds["end"])
    )
    return (
        pushes.join(own, on="request", how="left")
        .join(alike, on=_SAME, how="left")
        .join(of_step, on=["shard", "step"], how="left")
        .with_columns(
            pl.coalesce(name, f"other_{name}", f"step_{name}").alias(name)
            for name in ("begin", "end")
        )
    )


def _with_return(pushes: pl.LazyFrame, replies: pl.LazyFrame, pulls: pl.LazyFrame) -> pl.LazyFrame:
    """Add when the worker had the new weights: with the push's own reply, or with the next pull."""
    answered = replies.select("request", answered=True).unique("request")
    pulled = pulls.select("process", "shard", "key", pulled="end_ns").sort("pulled")
    return (
        pushes.join(answered, on="request", how="left")
        .sort("end")
        .join_asof(
            pulled,
            left_on="end",
            right_on="pulled",
            by=["process", "shard", "key"],
            strategy="forward",
            check_sortedness=False,
        )
        .with_columns(back=pl.when("answered").then("end_ns").otherwise("pulled"))
    )
