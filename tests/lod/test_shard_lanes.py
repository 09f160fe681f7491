"""Shards have two rows, what they served and what they received, without overlap."""

import polars as pl

from tracelens.lod import lanes, residuals
from tracelens.lod.lanes import CODES, FIRST_LEVEL, LEVELS


def spans_of(rows: list[tuple[int, str, int, int]]) -> pl.DataFrame:
    """Build shard spans from (process, op, start, end)."""
    table = pl.DataFrame(rows, schema=["process", "op", "start_ns", "end_ns"], orient="row")
    return table.with_columns(pl.col("process").cast(pl.Int32), name=pl.col("op"), step=pl.lit(0))


def test_received_and_served_are_two_rows() -> None:
    """Each operation lands in its row under its own colour; requests of workers do not."""
    spans = spans_of([(7, "receive", 0, 10), (7, "aggregate", 10, 30), (7, "push", 0, 40)])
    shard_lanes = lanes.make_shard_lanes(spans, [(7, 0)])
    assert [lane.track_name for lane in shard_lanes.owners] == ["serve", "receive"]
    assert shard_lanes.palette_codes[:].tolist() == [CODES["aggregate"], CODES["receive"]]
    assert shard_lanes.item_offsets.tolist() == [0, 1, 2]


def test_receptions_that_overlap_are_cut() -> None:
    """Of three parallel receptions, each keeps the time after all earlier ones have ended."""
    spans = spans_of([(1, "receive", 0, 10), (1, "receive", 4, 16), (1, "receive", 5, 9)])
    found = lanes.make_shard_lanes(spans, [(1, 0)])
    assert list(zip(found.starts_ns[:], found.ends_ns[:], strict=True)) == [(0, 10), (10, 16)]


def test_the_busiest_shard_is_the_late_one() -> None:
    """Zoomed out, a shard that serves twice as long as the others gets the end of the ramp."""
    rows = [
        (p, "aggregate", 100 * s, 100 * s + (40 if p == 2 else 20))
        for p in range(3)
        for s in range(5)
    ]
    windows = pl.DataFrame(
        {
            "step": range(5),
            "start_ns": range(0, 500, 100),
            "end_ns": range(100, 600, 100),
        }
    )
    detail = lanes.make_shard_lanes(spans_of(rows), [(p, p) for p in range(3)])
    coarse = residuals.make_usage_lanes(detail, windows)
    serve = [row for row, lane in enumerate(coarse.owners) if lane.track_name == "serve"]
    levels = coarse.palette_codes[:].reshape(len(coarse), 5)[serve]
    assert (levels[2] == FIRST_LEVEL + LEVELS - 1).all()
    assert (levels[:2] == FIRST_LEVEL).all()
