"""How much exposed transfer could run beside backprop instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from tracelens.analyses.phases import Phases
    from tracelens.trace import Trace


def hideable(trace: Trace, phases: Phases) -> int:
    """Return by how many nanoseconds hiding transfer would shorten the job, at best.

    In a step no rank can hide more than its backprop has room for, nor what must follow backprop: the
    last collective, or the pulls of new weights. A step is shorter only by what the rank gains that
    gains least.
    """
    backprop = pl.col("ns").filter(pl.col("category") == "backprop").sum()
    transfer = pl.col("ns").filter(pl.col("category") == "transfer").sum()
    steps = phases.times.group_by("rank", "step").agg(backprop=backprop, transfer=transfer)
    hidden = phases.hidden.select("rank", "step", hidden="ns")
    joined = steps.join(hidden, on=["rank", "step"], how="left").join(
        _last_calls(trace), on=["rank", "step"], how="left"
    )
    room = (pl.col("backprop") - pl.col("hidden").fill_null(0)).clip(lower_bound=0)
    early = pl.col("transfer") * (1 - _pulled(trace)) - pl.col("last").fill_null(0)
    gains = joined.with_columns(gain=pl.min_horizontal(early.clip(lower_bound=0), room))
    return int(gains.group_by("step").agg(pl.col("gain").min())["gain"].sum())


def _last_calls(trace: Trace) -> pl.DataFrame:
    """Return the transfer of the last collective of each rank and step."""
    return (
        trace.arrivals.drop_nulls("transfer_ns")
        .sort("start_ns")
        .group_by("rank", "step")
        .agg(last=pl.col("transfer_ns").last())
    )


def _pulled(trace: Trace) -> float:
    """Return the share of pulls in what workers exchange with parameter servers; 0 without any."""
    op = pl.col("op").cast(pl.String)
    moved = trace.spans.filter((pl.col("kind") == "ps") & op.is_in(["push", "pull"]))
    sums = moved.select(
        pulled=pl.col("bytes").filter(op == "pull").sum(), all=pl.col("bytes").sum()
    ).collect()
    pulled, everything = sums.row(0)
    return float(pulled / everything) if everything else 0.0
