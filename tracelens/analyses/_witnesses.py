"""What speaks for a lateness beside own time: that others were held up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracelens.analyses._robust import deviation

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens.trace import Trace


def complete_calls(trace: Trace, steps: npt.NDArray[np.int64]) -> pl.DataFrame:
    """Return the arrivals at the collectives of some steps that every rank came to."""
    return trace.arrivals.filter(
        pl.col("step").is_in(steps.tolist()), pl.col("last_arrival_ns").is_not_null()
    )


def last_share(calls: pl.DataFrame, ranks: tuple[int, ...]) -> float | None:
    """Return in what share of collectives one of `ranks` came last; null without any."""
    each = calls.unique(["communicator", "seq"])
    if each.is_empty():
        return None
    return each.filter(pl.col("last_rank").is_in(list(ranks))).height / each.height


def held_up(calls: pl.DataFrame, ranks: tuple[int, ...]) -> tuple[float, float] | None:
    """Return how long collectives had to wait for `ranks` alone, beyond what they do for any rank.

    That is the time between the last arrival of the others and that of `ranks`, less what a typical
    other rank holds up; and by how much that differs from one other rank to the next (its standard
    deviation), in nanoseconds. Null without collectives.
    """
    if calls.is_empty():
        return None
    late = pl.col("rank").is_in(list(ranks))
    here, others = (pl.col("start_ns").filter(part).max() for part in (late, ~late))
    arrivals = pl.col("start_ns").sort(descending=True)
    each = calls.group_by("communicator", "seq").agg(
        alone=(here - others).clip(lower_bound=0),
        last=pl.col("last_rank").first(),
        gap=arrivals.get(0) - arrivals.get(1, null_on_oob=True),
    )
    usual = each.group_by("last").agg(pl.col("gap").sum())
    peers = calls.filter(~late).select(last="rank").unique()
    theirs = peers.join(usual, on="last", how="left")["gap"].fill_null(0).to_numpy()
    if not len(theirs):
        return float(each["alone"].sum()), 0.0
    typical = float(np.median(theirs))
    spread = deviation(theirs - typical)
    return float(each["alone"].sum()) - typical, spread
