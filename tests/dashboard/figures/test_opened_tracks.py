"""Opened processes show their tracks below their row: drawn, labelled, counted, clicked, selected."""

import pytest
from support.web.stores import devices, sharded, slow_rank

from tracelens_dashboard.components.timeline import gutter, inspector
from tracelens_dashboard.figures.timeline import plot
from tracelens_dashboard.figures.timeline.frame import CLOSED, OPEN, Frame
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.theme import DARK, LIGHT
from tracelens_dashboard.view import viewport
from tracelens_dashboard.view.viewport import Controls, Position


def step_view(store: Store, step: int) -> dict[str, int]:
    window = store.window_of_steps(step, step)
    assert window
    origin = store.run_window.start_ns
    return {"t0": window.start_ns - origin, "t1": window.end_ns - origin}


def frame_of(store: Store, *keys: str, step: int = 5, selected: object = None) -> Frame:
    return viewport.frame(
        store,
        Controls(
            step_view(store, step),
            [],
            None,
            selected,
            opened_row_keys=list(keys),
            room_height_px=700,
        ),
    )


def test_reductions_in_flight_are_drawn_beside_backprop() -> None:
    """Each bucket of the step is a bar of the opened rank, where backprop hid it."""
    store = slow_rank()
    frame = frame_of(store, "1")
    data = plot.draw_changing(frame, viewport.picture(frame), LIGHT)["data"]
    names = [words[1] for bars in data if bars["type"] == "bar" for words in bars["customdata"]]
    recorded = store.spans_of_process(1).filter(step=5, kind="reduction")
    assert recorded.height > 1
    assert sum(name.startswith("bucket") or "reduce" in name for name in names) >= recorded.height


def test_each_track_is_labelled_once_below_its_row() -> None:
    """The row's sign turns, and the tracks' names follow from top to bottom."""
    frame = frame_of(slow_rank(), "1")
    axis = plot.draw(frame, viewport.picture(frame), DARK).layout.yaxis
    labels = [label.strip() for _, label in sorted(zip(axis.tickvals, axis.ticktext, strict=True))]
    assert labels[0] == f"{CLOSED} rank 0"
    assert labels[1] == f"{OPEN} rank 1"
    tracks = labels[2 : labels.index(f"{CLOSED} rank 2")]
    assert tracks[0] == "MainThread"
    assert len(tracks) == len(set(tracks)) > 1


def test_a_shard_shows_queue_and_service() -> None:
    """Its requests wait between their arrival and their service, in lanes of their own."""
    frame = frame_of(sharded(), "ps0")
    (opened,) = frame.opened_processes
    parts = [lane.track_name for lane in opened.track_group.scene.span_lanes.owners]
    assert parts.index("queue") < len(parts) - 1
    lanes = opened.track_group.scene.span_lanes
    queue = [i for i, lane in enumerate(lanes.owners) if lane.track_name == "queue"]
    items = slice(int(lanes.item_offsets[queue[0]]), int(lanes.item_offsets[queue[-1] + 1]))
    assert {lanes.item_names[name].rsplit(" ", 1)[0] for name in lanes.name_indices[items]} == {
        "request of worker"
    }


def test_streams_are_among_the_tracks_and_not_shown_twice() -> None:
    """The opened rank's streams leave the section below; the other rank's stay."""
    frame = frame_of(devices(), "0")
    below = {
        frame.scene.span_lanes.owners[band.lane_indices[0]].rank
        for band in frame.row_plan.select_section("streams")
    }
    assert below == {1}
    parts = [
        lane.track_name
        for lane in frame.opened_processes[0].track_group.scene.span_lanes.owners
        if lane.role == "device"
    ]
    assert parts == ["cuda:0 reductions", "cuda:0 stream 0"]


def test_a_click_on_a_track_finds_its_span() -> None:
    """The span under the mouse is selected, framed, and leads to its collective."""
    store = slow_rank()
    bucket = store.spans_of_process(1).filter(step=5, kind="reduction").row(0, named=True)
    frame = frame_of(store, "1")
    (opened,) = frame.opened_processes
    lanes = opened.track_group.scene.span_lanes
    row = next(i for i, lane in enumerate(lanes.owners) if "reductions" in lane.track_name)
    moment = (bucket["start_ns"] + bucket["end_ns"]) // 2
    seconds = (moment - store.run_window.start_ns) / 1e9
    position = viewport.find_position(
        store, frame, {"xvals": [seconds], "yvals": [opened.row_plan.bands[row].middle_px]}
    )
    assert position is not None
    assert (position.scene_row, position.track_index) == (1, row)
    selected_frame = frame_of(store, "1", selected=inspector.selection_of(store, position))
    assert [(o.start_ns, o.end_ns) for o in selected_frame.selected_spans] == [
        (bucket["start_ns"], bucket["end_ns"])
    ]
    assert selected_frame.selected_call is not None
    assert selected_frame.selected_call.seq == bucket["seq"]
    shapes = plot.draw_changing(selected_frame, viewport.picture(selected_frame), LIGHT)["shapes"]
    assert sum(shape.get("name") == "selected" for shape in shapes) == 1


def test_processes_open_and_close() -> None:
    """What was opened unasked counts as opened; what is no process changes nothing."""
    store = slow_rank()
    assert gutter.toggle_key(store, "2", Controls(opened_row_keys=[])) == ["2"]
    assert gutter.toggle_key(store, "2", Controls(opened_row_keys=["0", "2"])) == ["0"]
    unasked = viewport.choose_opened(store, Controls(opened_row_keys=None, room_height_px=600))
    assert unasked[0] == "2"  # a finding names it
    closed = gutter.toggle_key(store, "2", Controls(opened_row_keys=None, room_height_px=600))
    assert closed == unasked[1:]
    for junk in (None, "77", "ps0", 3, "", "../x"):
        assert gutter.toggle_key(store, junk, Controls(opened_row_keys=[])) is None


@pytest.mark.parametrize(
    "rows",
    [
        Controls(opened_row_keys="x", row_px="y", room_height_px="z"),
        Controls(opened_row_keys={}, row_px=[], room_height_px={}),
        Controls(opened_row_keys=[3, None], row_px=-1, room_height_px=-1),
    ],
)
def test_senseless_rows_are_ignored(rows: Controls) -> None:
    selected = {"lane": 0, "at": 5, "track": 10**6}
    frame = viewport.frame(slow_rank(), rows._replace(view_data={}, selected_point=selected))
    assert frame.opened_processes == ()
    assert frame.selected_spans == ()
    assert Position(0, 0).track_index is None
