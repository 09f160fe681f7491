"""An opened process has a lane for each thread and depth, and for each call that is in flight."""

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runs.traces import call, span, trace_of

from tracelens.lod import viewport
from tracelens.lod.lanes import CODES, Lane
from tracelens.lod.query import draw_picture
from tracelens.lod.tracks.group import MOST_LEVELS, Group, make_tracks
from tracelens.lod.viewport import Window
from tracelens.model.trace import SAMPLE_COLUMNS

NAMES = {0: "MainThread", 1: "reductions"}
WHOLE = Window(0, 100_000)
RANK = Lane(0, "worker", 0)


def events() -> pl.DataFrame:
    """Record a step with nested layers, and two overlapping reductions."""
    recorded = [
        span(0, "step", 0, 90_000, step=7),
        span(0, "forward", 1_000, 40_000, depth=1),
        span(0, "forward", 2_000, 20_000, "layer 0", depth=2),
        span(0, "backprop", 40_000, 80_000, depth=1),
        call(0, 0, 30_000, 70_000),
        call(0, 1, 50_000, 75_000),
        span(0, "update", 90_000, None),
    ]
    return trace_of(recorded).events.collect()


def build_group(samples: pl.DataFrame | None = None) -> Group:
    return make_tracks(events(), RANK, NAMES, 0, run_window=WHOLE, samples=samples)


def in_track(spans: Group, name: str) -> list[list[tuple[str, int, int]]]:
    """Return the spans of a track, a list a lane."""
    lanes = spans.scene.span_lanes
    lane_rows = [i for i, lane in enumerate(lanes.owners) if lane.track_name == name]
    return [
        [
            (
                lanes.item_names[lanes.name_indices[item]],
                int(lanes.starts_ns[item]),
                int(lanes.ends_ns[item]),
            )
            for item in range(int(lanes.item_offsets[lane]), int(lanes.item_offsets[lane + 1]))
        ]
        for lane in lane_rows
    ]


def test_threads_and_depths_are_lanes() -> None:
    """From the outermost spans to the innermost; a span that is still open lasts until the end."""
    assert in_track(build_group(), "MainThread") == [
        [("step 7", 0, 90_000), ("update", 90_000, 100_000)],
        [("forward", 1_000, 40_000), ("backprop", 40_000, 80_000)],
        [("layer 0", 2_000, 20_000)],
    ]


def test_reductions_in_flight_have_a_lane_each() -> None:
    """They overlap, so neither hides the other."""
    first, second = in_track(build_group(), "reductions")
    assert [times for _, *times in first] == [[30_000, 70_000]]
    assert [times for _, *times in second] == [[50_000, 75_000]]


def test_every_span_leads_to_its_event() -> None:
    """What is drawn of a span is that of the event that it says."""
    group, table = build_group(), events()
    lanes = group.scene.span_lanes
    assert (
        table["start_ns"].gather(group.event_row_by_item).to_list() == lanes.starts_ns[:].tolist()
    )
    assert sorted(group.event_row_by_item.tolist()) == list(range(table.height))
    assert group.hidden_count == 0


def test_few_spans_become_shapes() -> None:
    """A window with few of them shows every span, and lanes that are empty there change nothing."""
    group = build_group()
    for window in (WHOLE, Window(0, 25_000)):
        picture = draw_picture(group.scene, window, viewport.plan_tracks(group.scene.span_lanes))
        assert picture.detail_level == "spans"
    assert (
        draw_picture(group.scene, WHOLE, viewport.plan_tracks(group.scene.span_lanes)).span_count
        == 7
    )


def test_a_process_without_events_has_no_lanes() -> None:
    found = make_tracks(events().clear(), RANK, NAMES, 0, run_window=WHOLE)
    assert len(found.scene.span_lanes) == 0
    draw_picture(found.scene, WHOLE, viewport.plan_tracks(found.scene.span_lanes))


def test_sampled_code_is_a_lane() -> None:
    """By its innermost call; two calls in a row are different ones, and each knows its step."""
    rows_seen = [
        (0, 0, 100, "MainThread", 1_000, 4_000, ["main (a:1)", "load (b:2)"]),
        (0, 0, 100, "MainThread", 4_000, 9_000, ["main (a:1)", "work (/home/me/c.py:3)"]),
        (0, 0, 100, "MainThread", 9_000, 9_500, []),
    ]
    samples = pl.DataFrame(rows_seen, schema=SAMPLE_COLUMNS, orient="row")
    lanes = build_group(samples).scene.span_lanes
    assert lanes.owners[-1].track_name == "code of MainThread"
    lane_items = slice(int(lanes.item_offsets[-2]), int(lanes.item_offsets[-1]))
    assert [lanes.item_names[name] for name in lanes.name_indices[lane_items]] == [
        "load (b:2)",
        "work (c.py:3)",
    ]
    assert lanes.palette_codes[lane_items].tolist() == [CODES["stack"], CODES["next_stack"]]
    assert lanes.ends_ns[lane_items].tolist() == [4_000, 9_000]
    assert set(lanes.step_numbers[lane_items].tolist()) == {7}


SPANS = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 200)), min_size=1, max_size=60)


@given(spans=SPANS)
@settings(max_examples=60)
def test_no_two_calls_of_a_lane_overlap(spans: list[tuple[int, int]]) -> None:
    """All calls are drawn as recorded, in as many lanes as calls were in flight together."""
    rows = [
        call(0, seq, begin_ns, begin_ns + duration_ns)
        for seq, (begin_ns, duration_ns) in enumerate(sorted(spans))
    ]
    group = make_tracks(
        trace_of(rows).events.collect(), RANK, NAMES, None, run_window=Window(0, 1_000)
    )
    lanes = group.scene.span_lanes
    for lane in range(len(lanes)):
        mine = slice(int(lanes.item_offsets[lane]), int(lanes.item_offsets[lane + 1]))
        assert (lanes.starts_ns[mine][1:] >= lanes.ends_ns[mine][:-1]).all()
    drawn = sorted(zip(lanes.starts_ns[:].tolist(), lanes.ends_ns[:].tolist(), strict=True))
    assert drawn == sorted((begin_ns, begin_ns + duration_ns) for begin_ns, duration_ns in spans)
    at_once = max(sum(b <= at < b + duration_ns for b, duration_ns in spans) for at, _ in spans)
    assert len(lanes) == at_once


def test_what_has_no_lane_is_counted() -> None:
    """If more calls are in flight than lanes exist, the others are counted."""
    rows = [call(0, seq, 10, 50) for seq in range(MOST_LEVELS + 2)]
    found = make_tracks(trace_of(rows).events.collect(), RANK, NAMES, None, run_window=WHOLE)
    assert len(found.scene.span_lanes) == MOST_LEVELS
    assert found.hidden_count == 2


def test_counters_are_read_by_time() -> None:
    """Each has a lane of its own below the spans, which holds no span."""
    table = events()
    reading = {"type": "counter", "name": "samples", "value": 8.0, "kind": "step", "thread": 0}
    read = pl.DataFrame([reading | {"start_ns": at} for at in (500, 100)]).cast(
        {"type": table.schema["type"], "thread": pl.UInt16}
    )
    joined = pl.concat(
        [table.with_columns(pl.col("kind", "name").cast(pl.String)), read], how="diagonal"
    )
    group = make_tracks(joined, RANK, NAMES, 0, run_window=WHOLE)
    ((lane, counter),) = group.counter_by_lane.items()
    assert group.scene.span_lanes.owners[lane].track_name == "samples"
    assert np.diff(group.scene.span_lanes.item_offsets)[lane] == 0
    assert counter.times_ns.tolist() == [100, 500]
