"""A marked area has a table of its spans, of the rows and the time that are marked and no others."""

from typing import Any

import polars as pl
import pytest
from support.web.stores import devices, open_run, sharded, slow_rank

from tracelens.simulator.synthetic import Scenario
from tracelens_dashboard.components.timeline import area, finding
from tracelens_dashboard.figures.timeline.frame import NS_PER_SECOND, Frame
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.view import viewport
from tracelens_dashboard.view.viewport import Controls


def frame_of(store: Store, *opened: str) -> Frame:
    return viewport.frame(
        store, Controls(None, [], "rank", opened_row_keys=list(opened), room_height_px=900)
    )


def box(x: tuple[float, float], y: tuple[float, float]) -> dict[str, Any]:
    return {"points": [], "range": {"x": list(x), "y": list(y)}}


def band_of(frame: Frame, lane: int) -> tuple[float, float]:
    (band,) = (band for band in frame.row_plan.bands if band.lane_indices == (lane,))
    return band.top_px + 1, band.top_px + band.height_px - 1


def test_a_box_over_a_rank_is_the_polars_query_over_its_spans() -> None:
    """Every name once, with counts and times as recorded."""
    store = slow_rank()
    frame = frame_of(store)
    marked = area.area_of(store, frame, box((0.1, 0.4), band_of(frame, 2)))
    assert marked is not None
    assert dict(marked.marked_tracks_by_row) == {2: None}
    rows = area.tables(store, marked).sums_by_name
    assert {row["process"] for row in rows} == {"rank 2"}
    start, end = marked.marked_window.start_ns, marked.marked_window.end_ns
    assert end - start == round(0.3 * NS_PER_SECOND)
    spans = store.spans_of_process(2).filter(pl.col("start_ns") < end, pl.col("end_ns") > start)
    assert sum(row["count"] for row in rows) == spans.height
    within = pl.min_horizontal("end_ns", end) - pl.max_horizontal("start_ns", start)
    assert sum(float(row["total"]) for row in rows) == spans.select(within.sum()).item()
    assert [float(row["total"]) for row in rows] == sorted(
        (float(row["total"]) for row in rows), reverse=True
    )


def test_single_spans_are_listed_with_their_place() -> None:
    """The longest first, of the marked ranks alone; a click on a name finds the span again."""
    store = slow_rank()
    frame = frame_of(store)
    marked = area.area_of(store, frame, box((0.1, 0.4), band_of(frame, 2)))
    assert marked is not None
    _, rows, has_more = area.tables(store, marked)
    start, end = marked.marked_window.start_ns, marked.marked_window.end_ns
    spans = store.spans_of_process(2).filter(pl.col("start_ns") < end, pl.col("end_ns") > start)
    assert (len(rows), has_more) == (
        min(spans.height, area.MAX_LISTED_SPANS),
        spans.height > area.MAX_LISTED_SPANS,
    )
    lengths = [float(row["length"]) for row in rows]
    assert lengths == sorted(lengths, reverse=True)
    recorded = spans.select("start_ns", "end_ns").rows()
    for number, row in enumerate(rows[:40]):
        hit = finding.hit_of_row(store, {"colId": "span", "rowId": str(number)}, rows)
        assert hit is not None
        assert (hit.position.moment_ns, hit.end_ns) in recorded
        assert hit.end_ns - hit.position.moment_ns == row["length"]
        assert hit.position.track_index is not None
        assert hit.position.scene_row == 2


def test_a_span_that_is_still_open_has_no_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is listed by what of it is seen."""
    store = slow_rank()
    marked = area.area_of(store, frame_of(store), box((0.1, 0.4), band_of(frame_of(store), 2)))
    assert marked is not None
    still = store.spans_of_scene_row(2, None).head(1).with_columns(end_ns=pl.lit(None, pl.Int64))
    monkeypatch.setattr(type(store), "spans_of_scene_row", lambda *_: still)
    (row,) = area.tables(store, marked).single_spans
    assert row["length"] is None
    assert row["until"] > row["at"]


@pytest.mark.parametrize(
    "cell",
    [None, {}, {"colId": "kind", "rowId": "0"}, {"colId": "span", "rowId": "x"},
     {"colId": "span", "rowId": "7"}, {"colId": "span", "rowId": "1"}],
)  # fmt: skip
def test_a_click_that_means_no_span_leads_nowhere(cell: Any) -> None:
    rows = [{"row": 0, "at": 0, "until": 5}, {"row": 99, "at": 0}]
    assert finding.hit_of_row(slow_rank(), cell, rows) is None


def test_a_level_drag_marks_all_rows() -> None:
    store = sharded()
    frame = frame_of(store)
    marked = area.area_of(store, frame, box((0.0, 0.2), (-100, 10_000)))
    assert marked is not None
    listed = {row["process"] for row in area.tables(store, marked).sums_by_name}
    assert {"rank 0", "rank 3", "PS shard 0", "PS shard 2"} <= listed


def test_of_an_opened_process_only_the_marked_tracks_count() -> None:
    """The lane of steps alone, without what is in them."""
    store = slow_rank()
    frame = frame_of(store, "1")
    (opened,) = frame.opened_processes
    first = opened.row_plan.bands[0]
    marked = area.area_of(store, frame, box((0.0, 5.0), (first.top_px + 1, first.top_px + 2)))
    assert marked is not None
    assert dict(marked.marked_tracks_by_row) == {1: frozenset({0})}
    assert {row["kind"] for row in area.tables(store, marked).sums_by_name} == {"step"}


def test_a_stream_has_the_times_of_its_device() -> None:
    """Its row shows when kernels ran, not when they were queued."""
    store = devices()
    frame = frame_of(store)
    (row, *_) = store.scene_rows_of_streams(0)
    marked = area.area_of(store, frame, box((0.0, 5.0), band_of(frame, row)))
    assert marked is not None
    rows = area.tables(store, marked).sums_by_name
    lanes = store.scene.span_lanes
    items = slice(int(lanes.item_offsets[row]), int(lanes.item_offsets[row + 1]))
    shown = int((lanes.ends_ns[items] - lanes.starts_ns[items]).sum())
    assert sum(float(one["total"]) for one in rows) == pytest.approx(shown)


def test_of_many_rows_the_first_are_read_and_the_sentence_says_so() -> None:
    """Each row is a file."""
    store = open_run(Scenario(ranks=area.MOST_ROWS + 2, steps=3))
    marked = area.area_of(store, frame_of(store), box((0.0, 1.0), (-1, 10_000)))
    assert marked is not None
    assert (list(marked.marked_tracks_by_row), marked.left_out_row_count) == (
        list(range(area.MOST_ROWS)),
        2,
    )
    assert "of 18 marked rows the first 16" in area.describe_area(store, marked, 3)


@pytest.mark.parametrize(
    "junk",
    [
        None,
        3,
        {"range": {"x": [0, 1]}},
        {"range": {"x": [0, 1], "y": [0]}},
        {"range": {"x": [0, 1], "y": ["a", 1]}},
        {"range": {"x": [0, 1], "y": [float("inf"), 1]}},
        {"range": {"x": [1e300, 1], "y": [0, 1]}},
        {"range": {"x": [0, 1], "y": [1e6, 1e7]}},
        {"range": {"x": [0.5, 0.5], "y": [0, 100]}},
    ],
)
def test_nonsense_marks_nothing(junk: object) -> None:
    """What the browser sends may be anything."""
    store = slow_rank()
    assert area.area_of(store, frame_of(store), junk) is None
