"""The analyses' small tables that pages draw, each named once; a run keeps them, also in its index.

A table belongs here if ranks, shards, steps or a fixed number bound its rows, never if events do: an
index is opened in a moment, and pages hold whole tables in memory.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import polars as pl

    from tracelens.analyses.result import Report

MOST_ROWS: Final = 1 << 17  # such as steps of a long run; of pairs of ranks, the first
# Name: analysis (as in `Report.results`), then the way to the table in its result.
KEPT: Final[dict[str, str]] = {
    "arrivals_by_step": "arrivals.by_step",
    "arrivals_last": "arrivals.last",
    "arrivals_spread": "arrivals.spread",
    "asynchrony": "asynchrony.workers",
    "background": "chains.background",
    "bandwidths": "communication.bandwidths",
    "bandwidths_slowest": "communication.slowest",
    "chains": "chains.chains",
    "critical_cells": "critical_path.cells",
    "critical_longest": "critical_path.longest",
    "critical_path": "critical_path.shares",
    "critical_stays": "critical_path.stays",
    "epochs": "membership.epochs",
    "gap_spread": "interleaving.gap_spread",
    "imbalance": "imbalance.ranks",
    "links": "links.links",
    "message_costs": "communication.lines",
    "overlap": "interleaving.overlap",
    "overlap_by_bucket": "interleaving.by_bucket",
    "overlap_by_step": "interleaving.by_step",
    "placements": "imbalance.shards.placements",
    "slack": "critical_path.slack",
    "tensors": "imbalance.shards.tensors",
}


def of(report: Report) -> dict[str, pl.DataFrame]:
    """Take the tables out of a report; those of analyses that were not run are left out."""
    found = {}
    for name, path in KEPT.items():
        analysis, _, way = path.partition(".")
        if analysis in report.results:
            table: pl.DataFrame = attrgetter(way)(report.results[analysis])
            found[name] = table.head(MOST_ROWS)
    return found
