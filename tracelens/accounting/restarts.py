"""Ranks that came back when a launcher started them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from tracelens.model.trace import Trace


def find_restarted(trace: Trace) -> list[int]:
    """Return the main processes of ranks that an earlier life of the job had as well."""
    workers = trace.processes.filter(pl.col("role") == "worker")
    first_lives = workers.group_by("rank").agg(born=pl.col("incarnation").min())
    restarted_workers = trace.workers.join(first_lives, on="rank").filter(
        pl.col("incarnation") > pl.col("born")
    )
    return restarted_workers["process"].to_list()
