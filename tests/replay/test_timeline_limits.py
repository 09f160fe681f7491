"""Runs whose time does not fit on one line of 64-bit nanoseconds are not replayed."""

from __future__ import annotations

import polars as pl

import tracelens as tl

DAY_NS = 86_400 * 10**9


def test_many_ranks_far_apart_are_analyzed_without_a_replay() -> None:
    """Sixty ranks, of which each has one short step, over twenty years."""
    rows = [
        {"rank": rank, "step": 0, "kind": kind, "start_ns": begin, "end_ns": begin + 10**6}
        for rank in range(60)
        for kind, begin in (
            ("forward", rank * 120 * DAY_NS),
            ("backprop", rank * 120 * DAY_NS + 10**6),
        )
    ]
    report = tl.analyze(tl.Trace.from_table(pl.DataFrame(rows)))
    assert report.verdict.state == "inconclusive"
