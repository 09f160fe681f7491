"""What each shard did in each step: how long its processor was at work, its link, and either.

All times of a shard are on its own clock. The processor works while it aggregates or applies, the link
while it receives a push or sends a reply; the window of pushes reaches from the first one's arrival to
the last update, that of pulls from the first reply's begin to the last one's end. Utilisation is judged
inside these windows: a synchronous job leaves its servers idle while workers compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from tracelens.trace import Trace

__all__ = ["SERVED_COLUMNS", "by_step", "requests", "union"]

PROCESSOR: Final = ("aggregate", "apply")
PUSHED: Final = ("receive", *PROCESSOR)
SERVED_COLUMNS: Final[dict[str, pl.DataType]] = {
    "shard": pl.Int32(),
    "step": pl.Int32(),
    "busy": pl.Int64(),  # at work with anything
    "cpu": pl.Int64(),
    "wire": pl.Int64(),
    "received": pl.Int64(),  # the part of wire that pushes take
    "push_window": pl.Int64(),
    "pull_window": pl.Int64(),
}
_GROUP: Final = ("shard", "step")


def requests(trace: Trace) -> pl.DataFrame:
    """Return what the shards recorded of their requests."""
    shards = trace.shards.select("process", held=pl.coalesce("shard", "rank"))
    return (
        trace.spans.filter((pl.col("kind") == "ps") & pl.col("end_ns").is_not_null())
        .join(shards.lazy(), on="process", how="inner")
        .select(
            "step", "bytes", "key", "request", "peer", "queue_depth", "start_ns", "end_ns",
            op=pl.col("op").cast(pl.String), shard=pl.coalesce("shard", "held"),
        )
        .sort(*_GROUP, "start_ns")
        .collect()
    )  # fmt: skip


def by_step(served: pl.DataFrame) -> pl.DataFrame:
    """Sum up each shard's steps."""
    op, moved = pl.col("op"), pl.col("bytes").fill_null(0) > 0
    received = (op == "receive") & moved
    wire = received | (op == "reply")
    cpu = op.is_in(PROCESSOR)
    whole = union(served, pl.lit(value=True), "busy")
    for part, name in ((cpu, "cpu"), (wire, "wire"), (received, "received")):
        whole = whole.join(union(served, part, name), on=_GROUP, how="left")
    for part, name in ((cpu | received, "push_window"), (op == "reply", "pull_window")):
        extent = served.filter(part).group_by(_GROUP)
        window = extent.agg((pl.col("end_ns").max() - pl.col("start_ns").min()).alias(name))
        whole = whole.join(window, on=_GROUP, how="left")
    columns = [pl.col(name).fill_null(0).cast(kind) for name, kind in SERVED_COLUMNS.items()]
    return whole.select(columns).sort(_GROUP)


def union(spans: pl.DataFrame, part: pl.Expr, name: str) -> pl.DataFrame:
    """Return how long any of a part of the spans lasted, by shard and step; sorted by start."""
    reached = pl.col("end_ns").cum_max().shift(1).over(_GROUP).fill_null(0)
    added = (pl.col("end_ns") - pl.max_horizontal("start_ns", reached)).clip(lower_bound=0)
    return (
        spans.filter(part).with_columns(added.alias(name)).group_by(_GROUP).agg(pl.col(name).sum())
    )
