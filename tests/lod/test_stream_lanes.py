"""Streams of devices have rows of their own, below the workers, with what ran there."""

import polars as pl
from support.runs.frames import scene_of

from tracelens.lod import lanes, viewport
from tracelens.lod.lanes import CODES
from tracelens.model.columns import Columns

STREAM, REDUCTIONS = "cuda:0 stream 0", "cuda:0 reductions"


NAMES = {4: STREAM, 5: REDUCTIONS}


def columns_of(spans: list[tuple[str, str, int, int]]) -> Columns:
    """Build events from (stream, kind, start, end), and one that no device timed."""
    table = pl.DataFrame(
        [(*span, "span") for span in [*spans, (STREAM, "user", 0, None)]],
        schema=["stream", "kind", "begun", "ended", "type"],
        orient="row",
    )
    begun_ns, thread = pl.col("begun"), {name: number for number, name in NAMES.items()}
    return Columns.from_frame(
        table.select(
            "type",
            "kind",
            start_ns=begun_ns - 5,
            end_ns=begun_ns - 4,
            name=pl.col("kind"),
            step=pl.lit(0, pl.Int32),
            device_start_ns=pl.when(pl.col("ended").is_not_null()).then(begun_ns),
            device_duration_ns=pl.col("ended") - begun_ns,
            stream=pl.col("stream").replace_strict(thread, return_dtype=pl.UInt16),
        )
    )


def test_each_stream_is_a_row() -> None:
    """Compute has the colours of its phases, reductions that of transfer."""
    spans = columns_of(
        [
            (STREAM, "forward", 0, 10),
            (STREAM, "backprop", 10, 30),
            (REDUCTIONS, "reduction", 20, 40),
        ]
    )
    stream_lanes = lanes.make_stream_lanes(3, 0, spans, NAMES)
    assert [(lane.role, lane.track_name) for lane in stream_lanes.owners] == [
        ("device", REDUCTIONS),
        ("device", STREAM),
    ]
    assert stream_lanes.palette_codes[:].tolist() == [
        CODES["transfer"],
        CODES["forward"],
        CODES["backprop"],
    ]
    assert stream_lanes.item_offsets.tolist() == [0, 1, 3]
    assert [stream_lanes.item_names[name] for name in stream_lanes.name_indices[:]] == [
        "reduction",
        "forward",
        "backprop",
    ]
    assert stream_lanes.item_names == ("", "backprop", "forward", "reduction")


def test_buckets_that_are_ready_early_are_drawn_one_after_another() -> None:
    """Each keeps the part in which no earlier one still ran."""
    ready = [(4, 16), (0, 10), (3, 9)]  # the last one is over before it is its turn
    spans = columns_of([(REDUCTIONS, "reduction", *times) for times in ready])
    found = lanes.make_stream_lanes(1, 1, spans, NAMES)
    assert list(zip(found.starts_ns[:], found.ends_ns[:], strict=True)) == [(0, 10), (10, 16)]


def test_streams_stand_below_the_workers() -> None:
    """In a section of their own, in the given order."""
    workers = scene_of(2, 3).span_lanes
    spans = columns_of([(STREAM, "forward", 0, 10)])
    streams = [lanes.make_stream_lanes(rank, rank, spans, NAMES) for rank in range(2)]
    both = lanes.join_lanes([workers, *streams])
    plan = viewport.plan_rows(both)
    assert [band.lane_indices for band in plan.select_section("streams")] == [(2,), (3,)]
    assert plan.select_section("streams")[0].top_px > plan.select_section("workers")[-1].top_px
