"""Rows of ranks gathered by host: a group has one row, and its ranks' below it when it is opened."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from support.runs.frames import scene_of
from support.web.stores import LATE, SLOW_RANK, open_run, slow_rank

from tracelens.lod import viewport as rows_of
from tracelens_dashboard.components.timeline import area, controls, gutter
from tracelens_dashboard.figures.timeline import overlays, plot
from tracelens_dashboard.figures.timeline.frame import CLOSED, OPEN, Frame
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.theme import LIGHT
from tracelens_dashboard.view import state, viewport
from tracelens_dashboard.view.viewport import Controls


@cache
def two_hosts() -> Store:
    """Return a run of four ranks on two hosts, whose rank 2 is slow."""
    return open_run(replace(SLOW_RANK, ranks_per_host=2), LATE)


def grouped_frame(*opened: str, **more: Any) -> Frame:
    return viewport.frame(
        two_hosts(),
        Controls(None, [], "host", opened_row_keys=list(opened), room_height_px=900, **more),
    )


def labels(frame: Frame) -> list[str]:
    axis = plot.draw(frame, viewport.picture(frame), LIGHT).layout.yaxis
    return [label.strip() for label in axis.ticktext]


def test_a_closed_group_is_one_row_of_its_worst_rank() -> None:
    """Each host has a row; that of the slow rank's host is drawn as the slow rank, and pointed at."""
    frame = grouped_frame()
    first_band, second_band = frame.row_plan.select_section("workers")
    assert [band.lane_indices for band in frame.row_plan.bands] == [(0, 1), (2, 3)]
    assert labels(frame) == [
        f"{CLOSED} {band.group.name}" for band in (first_band, second_band) if band.group
    ]
    alone = viewport.frame(two_hosts(), Controls(None, [], "rank"))
    pixels, single = viewport.picture(frame).palette_pixels, viewport.picture(alone).palette_pixels
    third = alone.row_plan.select_section("workers")[2]
    assert (pixels[int(second_band.middle_px)] == single[int(third.middle_px)]).all()
    marks = [note["y"] for note in plot.mark_labels(frame, LIGHT) if note["text"] == "▶"]
    assert marks == [second_band.middle_px]


def test_below_an_opened_group_are_its_ranks() -> None:
    """They can be opened in turn, which opens the group; closing it closes them."""
    frame = grouped_frame("g2")
    names = labels(frame)
    assert names[1:] == [names[1], f"{CLOSED} rank 2", f"{CLOSED} rank 3"]
    assert names[1].startswith(OPEN)
    inside = grouped_frame("3")
    assert [band.lane_indices for band in inside.row_plan.bands] == [(0, 1), (2, 3), (2,), (3,)]
    assert [one.process_key for one in inside.opened_processes] == ["3"]
    rows = Controls(opened_row_keys=["3"], room_height_px=900, sort_key="host")
    assert gutter.toggle_key(two_hosts(), "g2", rows) == []
    assert gutter.toggle_key(two_hosts(), "g0", rows) == ["3", "g0"]
    assert gutter.toggle_key(two_hosts(), "g1", rows) is None
    assert gutter.toggle_key(two_hosts(), "g2", rows._replace(sort_key="rank")) is None


def test_buttons_name_the_groups_and_their_ranks() -> None:
    """Rows of groups have a button as those of processes have."""
    buttons = [button for button in gutter.layout(grouped_frame("g2")) if hasattr(button, "title")]
    keys = [getattr(button, "data-track") for button in buttons]
    assert keys == ["g0", "g2", "2", "3"]
    assert [getattr(button, "aria-expanded") for button in buttons] == [
        "false",
        "true",
        "false",
        "false",
    ]


def test_spans_of_an_opened_group_can_be_pointed_at() -> None:
    """Within a step they are shapes, though the rows of groups are not."""
    store = two_hosts()
    window = store.window_of_steps(25, 25)
    assert window
    view = {
        "t0": window.start_ns - store.run_window.start_ns,
        "t1": window.end_ns - store.run_window.start_ns,
    }
    frame = viewport.frame(
        store, Controls(view, [], "host", opened_row_keys=["g2"], room_height_px=900)
    )
    picture = viewport.picture(frame)
    assert picture.bars
    drawn = {frame.row_plan.bands[band].lane_indices for band in picture.bars.band_indices.tolist()}
    assert drawn == {(2,), (3,)}
    assert picture.detail_level in {"dominant", "sampled"}


def test_a_call_of_grouped_ranks_is_marked_once_a_row() -> None:
    """The last rank of a closed group counts; an opened one's ranks count each."""
    store = two_hosts()
    for at in range(0, store.run_window.width_ns, store.scene.median_step_ns // 40):
        frame = grouped_frame("g2", selected_point={"lane": 2, "at": at, "track": None})
        if frame.selected_call:
            assert [len(one["x"]) for one in overlays.arrival_marks(frame, LIGHT)] == [3]
            return
    pytest.fail("no collective was met")


def test_an_area_over_a_closed_group_holds_its_ranks() -> None:
    """The table of the marked area has the ranks of the group."""
    frame = grouped_frame()
    second = frame.row_plan.select_section("workers")[1]
    whole = two_hosts().run_window.width_ns / 1e9
    marked = {"range": {"x": [0, whole], "y": [second.top_px, second.top_px + 3]}}
    found = area.area_of(two_hosts(), frame, marked)
    assert found
    assert list(found.marked_tracks_by_row) == [2, 3]


def test_orders_are_offered_where_there_are_groups() -> None:
    """By host only with several hosts; a link that asks for it elsewhere shows ranks."""
    assert "host" in controls.list_orders(two_hosts())
    assert not {"host", "stage"} & set(controls.list_orders(slow_rank()))
    frame = viewport.frame(slow_rank(), Controls(None, [], "host"))
    assert [band.lane_indices for band in frame.row_plan.bands] == [(0,), (1,), (2,), (3,)]
    assert state.read("?sort=host&open=g2,3").query_string == "open=g2,3&sort=host"


@pytest.mark.parametrize("hosts", [1, 3, 512, pytest.param(1500, marks=pytest.mark.slow)])
def test_rows_of_groups_do_not_overlap(hosts: int) -> None:
    """However many there are, and however many ranks an opened one has."""
    lanes = scene_of(2 * hosts, 2).span_lanes
    groups = [
        rows_of.RowGroup(f"g{2 * at}", "a", (2 * at, 2 * at + 1), at == 0) for at in range(hosts)
    ]
    plan = rows_of.plan_rows(lanes, groups=groups)
    ends = [(band.top_px, band.top_px + band.height_px) for band in plan.bands]
    assert all(a[1] <= b[0] for a, b in pairwise(ends))
    assert plan.bands[-1].top_px + plan.bands[-1].height_px <= plan.bottom_px
    assert {lane for band in plan.bands for lane in band.lane_indices} == set(range(2 * hosts))
