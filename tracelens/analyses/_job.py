"""How long the job lasted on the common clock: what shares are shares of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from tracelens.trace import Trace


__all__ = ["after_steps", "job_ns"]


def job_ns(trace: Trace) -> int:
    """Return the time from the first rank's first step to the end of the last one; 0 without steps.

    What was left out as asked, between steps that were kept, does not count: on average of the ranks.
    """
    start, end = trace.steps["start_ns"].min(), trace.steps["end_ns"].max()
    if not isinstance(start, int) or not isinstance(end, int):
        return 0
    return end - start - int(after_steps(trace.steps).sum()) // trace.steps["process"].n_unique()


def after_steps(steps: pl.DataFrame) -> pl.Series:
    """Return how long after each step the next of its process begins: 0, but where steps were left out.

    `steps` is in order of process and time.
    """
    following = pl.col("start_ns").shift(-1).over("process")
    after = (following - pl.col("end_ns")).fill_null(0)
    return steps.select(ns=after)["ns"]
