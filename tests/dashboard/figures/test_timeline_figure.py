"""The timeline lays its image exactly under the axes and names its rows, steps and spans."""

import base64

import pytest
from support.web.stores import DEVICES, SLOW_RANK, devices, sharded, slow_rank, traced

from tracelens.accounting import phases
from tracelens.lod.raster import PNG_SIGNATURE
from tracelens_dashboard.figures.timeline import plot
from tracelens_dashboard.figures.timeline.frame import CLOSED, band_label
from tracelens_dashboard.theme import DARK, LIGHT
from tracelens_dashboard.view import viewport
from tracelens_dashboard.view.viewport import Controls

MS = 1_000_000
WHOLE = {"t0": 0, "t1": 10**18}


def test_the_image_covers_what_is_seen() -> None:
    """The image's edges enclose the window, in seconds since the start, and its pixels are a PNG."""
    frame = viewport.frame(slow_rank(), Controls({"t0": 300 * MS, "t1": 500 * MS}, [], "rank"))
    image = plot.draw(frame, viewport.picture(frame), DARK).layout.images[0]
    assert image.x <= 0.3
    assert image.x + image.sizex >= 0.5
    assert image.sizey == frame.row_plan.bottom_px
    kind, _, data = image.source.partition(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(data).startswith(PNG_SIGNATURE)


def test_a_pinned_rank_is_on_top_and_bold() -> None:
    """Its row comes first with a bold label, and it is still in its place below."""
    frame = viewport.frame(slow_rank(), Controls(WHOLE, ["2"], "rank"))
    axis = plot.draw(frame, viewport.picture(frame), LIGHT).layout.yaxis
    labels = [label.removeprefix(CLOSED).strip() for label in axis.ticktext]
    assert labels == ["<b>rank 2</b>", "rank 0", "rank 1", "rank 2", "rank 3"]


def test_ranks_can_be_sorted_by_lateness() -> None:
    """The rank that lost most time comes first."""
    frame = viewport.frame(slow_rank(), Controls(WHOLE, [], "lateness"))
    axis = plot.draw(frame, viewport.picture(frame), LIGHT).layout.yaxis
    assert axis.ticktext[0].strip() == f"{CLOSED} rank 2"


def test_flagged_ranks_are_pointed_at() -> None:
    """The row of a rank that a fault names has a mark, also where it is a pixel high."""
    frame = viewport.frame(slow_rank(), Controls(WHOLE, [], "rank"))
    notes = plot.draw(frame, viewport.picture(frame), LIGHT).layout.annotations
    marks = [note.y for note in notes if note.text == "▶"]
    assert marks == [frame.row_plan.select_section("workers")[2].middle_px]


def test_real_spans_lie_where_they_ran() -> None:
    """Zoomed in to a step, bars carry name, rank, step and duration of the segments."""
    store = slow_rank()
    window = store.window_of_steps(25, 25)
    assert window is not None
    origin = store.run_window.start_ns
    view = {"t0": window.start_ns - origin, "t1": window.end_ns - origin}
    frame = viewport.frame(store, Controls(view, ["2"], "rank"))
    bars = plot.draw_changing(frame, viewport.picture(frame), LIGHT)["data"][1:]
    backprop = next(trace for trace in bars if trace["name"] == "backprop")
    labels = [tuple(words[:3]) for words in backprop["customdata"]]
    index = labels.index(("rank 2", "backprop", 25))
    span = phases.run(traced(SLOW_RANK)).segments.filter(rank=2, step=25, category="backprop")
    assert backprop["base"][index] == pytest.approx((span["start_ns"][0] - origin) / 1e9)
    length = int((span["end_ns"] - span["start_ns"]).sum()) / 1e9
    assert backprop["x"][index] == pytest.approx(length)


def test_shards_have_rows_below_the_workers() -> None:
    """Each shard shows what it served and what it received."""
    frame = viewport.frame(sharded(), Controls(WHOLE, [], "rank"))
    labels = [band_label(frame, band) for band in frame.row_plan.select_section("shards")]
    assert labels[:2] == ["PS 0 serves", "PS 0 receives"]
    assert len(labels) == 6
    assert (
        frame.row_plan.select_section("shards")[0].top_px
        > frame.row_plan.select_section("workers")[-1].top_px
    )


def test_streams_of_devices_have_rows_below_the_workers() -> None:
    """Each shows what ran there; those of a pinned rank stand with it on top."""
    frame = viewport.frame(devices(), Controls(WHOLE, ["1"], "lateness"))
    labels = [band_label(frame, band) for band in frame.row_plan.select_section("streams")]
    assert labels == [f"rank {r} {name}" for r in (0, 1) for name in ("reductions", "stream 0")]
    pinned = [band_label(frame, band) for band in frame.row_plan.select_section("pinned")]
    assert pinned == ["rank 1", "rank 1 reductions", "rank 1 stream 0"]


def test_what_ran_on_a_stream_is_drawn_when_it_ran() -> None:
    """Zoomed in to a step, the backprop of a stream lies where the device did it."""
    store = devices()
    window = store.window_of_steps(5, 5)
    assert window is not None
    origin = store.run_window.start_ns
    view = {"t0": window.start_ns - origin, "t1": window.end_ns - origin}
    frame = viewport.frame(store, Controls(view, [], "rank"))
    bars = plot.draw_changing(frame, viewport.picture(frame), LIGHT)["data"][1:]
    backprop = next(trace for trace in bars if trace["name"] == "backprop")
    labels = [tuple(words[:3]) for words in backprop["customdata"]]
    index = labels.index(("rank 1 stream 0", "backprop", 5))
    span = traced(DEVICES).spans.filter(rank=1, step=5, kind="backprop").collect()
    begin_ns, length = span["device_start_ns"][0], span["device_duration_ns"][0]
    assert backprop["base"][index] == pytest.approx((begin_ns - origin) / 1e9)
    assert backprop["x"][index] == pytest.approx(length / 1e9)


@pytest.mark.parametrize(
    ("number", "stride"), [(1, 1), (12, 1), (13, 2), (60, 5), (100, 10), (400, 50), (12_000, 1000)]
)
def test_step_ticks_are_round_and_few(number: int, stride: int) -> None:
    """So many steps in view are named in strides of 1, 2 or 5 times a power of ten."""
    assert plot.round_stride(number) == stride


def test_a_click_finds_rank_and_moment() -> None:
    """A click between rows finds nothing; on a row, that row's rank and the time under the mouse."""
    store = slow_rank()
    frame = viewport.frame(store, Controls(WHOLE, ["2"], "rank"))
    third = frame.row_plan.select_section("workers")[2].middle_px
    assert viewport.find_position(store, frame, {"xvals": [0.25], "yvals": [third]}) == (
        2,
        store.run_window.start_ns + 250 * MS,
        None,
    )
    gap = frame.row_plan.bands[0].top_px + frame.row_plan.bands[0].height_px + 3
    assert viewport.find_position(store, frame, {"xvals": [0.25], "yvals": [gap]}) is None


@pytest.mark.parametrize(
    "junk", [None, "x", {}, {"points": []}, {"xvals": ["a"], "yvals": [1]}, []]
)
def test_a_senseless_click_finds_nothing(junk: object) -> None:
    """What is not a click is not an error."""
    assert (
        viewport.find_position(
            slow_rank(), viewport.frame(slow_rank(), Controls(None, None, None)), junk
        )
        is None
    )


@pytest.mark.parametrize("view", [None, [], {"t0": "x"}, {"t0": -1, "t1": 5}, {"steps": ["a", 2]}])
def test_a_senseless_view_shows_the_whole_run(view: object) -> None:
    """The browser's view is taken for what it may be: anything."""
    store = slow_rank()
    frame = viewport.frame(store, Controls(view, ["9", "x", None, "-1"], 7))
    assert frame.visible_window == store.run_window
    assert not frame.row_plan.select_section("pinned")
    assert frame.marked_window is None
