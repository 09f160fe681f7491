"""Ranks that were left behind or came back when an elastic launcher started a job again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from tracelens.model.trace import Trace


def find_left_behind(trace: Trace) -> list[int]:
    """Return the main processes of ranks without which the job began again."""
    workers = trace.workers.filter(pl.col("world") > 0)
    if workers["world"].n_unique() < 2:
        return []
    latest_world = workers.sort("incarnation", "first_ns")["world"].last()
    restart_ns = workers.filter(pl.col("world") == latest_world)["first_ns"].min()
    leavers = workers.filter((pl.col("world") != latest_world) & (pl.col("last_ns") < restart_ns))
    return leavers["process"].to_list()


def find_restarted(trace: Trace) -> list[int]:
    """Return the main processes of ranks that an earlier life of the job had as well."""
    workers = trace.processes.filter(pl.col("role") == "worker")
    first_lives = workers.group_by("rank").agg(born=pl.col("incarnation").min())
    restarted_workers = trace.workers.join(first_lives, on="rank").filter(
        pl.col("incarnation") > pl.col("born")
    )
    return restarted_workers["process"].to_list()
