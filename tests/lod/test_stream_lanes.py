"""Streams of devices have rows of their own, below the workers, with what ran there."""

from __future__ import annotations

import polars as pl
from support.runs.frames import scene_of

from tracelens.lod import lanes, viewport
from tracelens.lod.lanes import CODES

STREAM, REDUCTIONS = "cuda:0 stream 0", "cuda:0 reductions"


def spans_of(spans: list[tuple[int, str, str, int, int]]) -> pl.DataFrame:
    """Build spans from (process, stream, kind, start, end)."""
    table = pl.DataFrame(
        spans, schema=["process", "stream_name", "kind", "start_ns", "end_ns"], orient="row"
    )
    return table.with_columns(pl.col("process").cast(pl.Int32), name=pl.col("kind"), step=pl.lit(0))


def test_each_stream_is_a_row() -> None:
    """Compute has the colours of its phases, reductions that of transfer."""
    spans = spans_of(
        [
            (3, STREAM, "forward", 0, 10),
            (3, STREAM, "backprop", 10, 30),
            (3, REDUCTIONS, "reduction", 20, 40),
        ]
    )
    found = lanes.from_streams(spans, [(3, 0, REDUCTIONS), (3, 0, STREAM)])
    assert [(lane.role, lane.part) for lane in found.lanes] == [
        ("device", REDUCTIONS),
        ("device", STREAM),
    ]
    assert found.codes[:].tolist() == [CODES["transfer"], CODES["forward"], CODES["backprop"]]
    assert found.offsets.tolist() == [0, 1, 3]


def test_buckets_that_are_ready_early_are_drawn_one_after_another() -> None:
    """Each keeps the part in which no earlier one still ran."""
    spans = spans_of([(1, REDUCTIONS, "reduction", 0, 10), (1, REDUCTIONS, "reduction", 4, 16)])
    found = lanes.from_streams(spans, [(1, 1, REDUCTIONS)])
    assert list(zip(found.starts[:], found.ends[:], strict=True)) == [(0, 10), (10, 16)]


def test_streams_stand_below_the_workers() -> None:
    """In a section of their own, in the given order."""
    workers = scene_of(2, 3).lanes
    spans = spans_of([(0, STREAM, "forward", 0, 10), (1, STREAM, "forward", 0, 10)])
    streams = lanes.from_streams(spans, [(0, 0, STREAM), (1, 1, STREAM)])
    both = lanes.joined([workers, streams])
    plan = viewport.plan(both)
    assert [band.lanes for band in plan.section("streams")] == [(2,), (3,)]
    assert plan.section("streams")[0].top > plan.section("workers")[-1].top
