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
    latest = workers.sort("incarnation", "first_ns")["world"].last()
    began = workers.filter(pl.col("world") == latest)["first_ns"].min()
    departed = workers.filter((pl.col("world") != latest) & (pl.col("last_ns") < began))
    return departed["process"].to_list()


def find_restarted(trace: Trace) -> list[int]:
    """Return the main processes of ranks that an earlier life of the job had as well."""
    lives = trace.processes.filter(pl.col("role") == "worker")
    first = lives.group_by("rank").agg(born=pl.col("incarnation").min())
    later = trace.workers.join(first, on="rank").filter(pl.col("incarnation") > pl.col("born"))
    return later["process"].to_list()
