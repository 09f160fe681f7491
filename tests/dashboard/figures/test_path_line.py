"""The critical path over the timeline: along the row that carries it, at every level, in few strokes."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from dash.development.base_component import Component
from plotly.utils import PlotlyJSONEncoder
from support.web.stores import report_of, slow_rank, traced

from tracelens.simulator.synthetic import Scenario
from tracelens_dashboard.components.timeline import controls
from tracelens_dashboard.figures.timeline import overlays, plot
from tracelens_dashboard.figures.timeline.frame import Frame
from tracelens_dashboard.pages import critical_path as page
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.theme import DARK, LIGHT
from tracelens_dashboard.view import links, viewport
from tracelens_dashboard.view.state import ViewState
from tracelens_dashboard.view.viewport import Controls

WHOLE = {"t0": 0, "t1": 10**18}
STROKE = re.compile(r"M([\d.]+),([\d.]+)H([\d.]+)")


def frame_of(store: Store, first: int, last: int, *pins: str) -> Frame:
    """Look at some steps, with the path."""
    window = store.window_of_steps(first, last)
    assert window
    origin = store.run_window.start_ns
    view = {"t0": window.start_ns - origin, "t1": window.end_ns - origin}
    return viewport.frame(store, Controls(view, list(pins), "rank", shows_path=True))


def lines(frame: Frame) -> list[dict[str, Any]]:
    """Return the shapes of the path in the whole timeline."""
    parts = plot.draw_changing(frame, viewport.picture(frame), LIGHT)
    return [shape for shape in parts["shapes"] if shape.get("name") == overlays.PATH_NAME]


def strokes(frame: Frame) -> list[tuple[float, float, float]]:
    """Return the strokes along rows: from, height, to."""
    found = STROKE.findall(lines(frame)[-1]["path"])
    return [(float(x0), float(y), float(x1)) for x0, y, x1 in found]


def test_it_is_drawn_when_asked_for() -> None:
    """Not without the switch, and not for an invalid value."""
    store = slow_rank()
    for path in (False, None, "1", 7):
        assert not lines(viewport.frame(store, Controls(WHOLE, [], "rank", shows_path=path)))
    assert lines(viewport.frame(store, Controls(WHOLE, [], "rank", shows_path=True)))


@pytest.mark.parametrize(("first", "last"), [(25, 25), (24, 34), (0, 59)])
def test_it_runs_along_the_late_rank(first: int, last: int) -> None:
    """At every level of detail, it is on rank 2's row in the steps in which that is late."""
    store = slow_rank()
    frame = frame_of(store, first, last)
    row = frame.row_plan.select_section("workers")[2]
    late = store.window_of_steps(22, 38)
    assert late
    begin, end = frame.seconds_since_start(late.start_ns), frame.seconds_since_start(late.end_ns)
    inside = [(x0, y, x1) for x0, y, x1 in strokes(frame) if x1 > begin and x0 < end]
    assert inside
    assert all(row.top_px < y < row.top_px + row.height_px for _, y, _ in inside)


def test_a_pinned_row_has_it_too() -> None:
    """On top as in its place below, without lines in between."""
    frame = frame_of(slow_rank(), 25, 25, "2")
    heights = {y for _, y, _ in strokes(frame)}
    pinned, own_row = frame.row_plan.bands[0], frame.row_plan.select_section("workers")[2]
    assert len(heights) == 2
    assert min(heights) < pinned.top_px + pinned.height_px
    assert max(heights) > own_row.top_px


def test_it_says_who_carries_it() -> None:
    """The sentence under the timeline, which screen readers say, names the ranks and their shares."""
    frame = frame_of(slow_rank(), 25, 30)
    assert "The line is the critical path: rank 2 100 %." in plot.describe_picture(
        frame, viewport.picture(frame)
    )
    whole_frame = viewport.frame(slow_rank(), Controls(WHOLE, [], "rank", shows_path=True))
    assert re.search(
        r"critical path: rank 2 \d+ %, rank \d",
        overlays.path_sentence(whole_frame, viewport.picture(whole_frame)),
    )


def test_many_ranks_and_changes_stay_few_strokes() -> None:
    """However often it changes ranks, it is three shapes, of at most one stroke for two pixels."""
    store = with_changes(ranks=64, changes=5000)
    frame = viewport.frame(store, Controls(WHOLE, [], "rank", shows_path=True, plot_width_px=1200))
    drawn = lines(frame)
    assert 0 < len(STROKE.findall(drawn[-1]["path"])) <= 600
    assert len(drawn) == 2  # no joints: they would hide what is below
    assert sum(len(shape["path"]) for shape in drawn) < 60_000


def with_changes(ranks: int, changes: int) -> Store:
    """Open a run whose path changes ranks often."""
    trace = traced(Scenario(ranks=ranks, steps=20))
    store = Store.from_trace(trace, report_of(trace))
    run_window, processes = store.run_window, store.run.workers["process"].to_list()
    length_ns = run_window.width_ns // changes
    rows = [
        (
            processes[index * 13 % ranks],
            run_window.start_ns + index * length_ns,
            run_window.start_ns + (index + 1) * length_ns,
        )
        for index in range(changes)
    ]
    return with_stays(store, rows)


def with_stays(store: Store, rows: list[tuple[int, int, int]]) -> Store:
    """Give a run another path: process, begin, end."""
    schema = store.analysis_table("critical_stays").schema
    stays = pl.DataFrame(rows, schema=schema, orient="row")
    tables = {**store.run.tables, "critical_stays": stays}
    return Store(replace(store.run, tables=tables), Path())


def test_both_schemes_tell_it_from_what_is_below() -> None:
    """The line has the colour of text, and a halo of the card's."""
    frame = frame_of(slow_rank(), 0, 59)
    for theme in (LIGHT, DARK):
        colours = [
            s["line"]["color"] for s in overlays.path_shapes(frame, viewport.picture(frame), theme)
        ]
        assert colours == [theme.text_colour, theme.surface_colour, theme.text_colour]


def test_marks_of_its_page_lead_to_it() -> None:
    """Cells, pieces, groups and ranks open the timeline with the path drawn."""
    store = slow_rank()
    ways = (
        page._link_to_cell(store, {"customdata": [2, 25, "", ""]}),
        page._link_to_group(store, {"customdata": ["rank", "rank 2", "backprop"]}),
        page._link_to_bar(store, {"customdata": 0}),
        page._link_to_rank(store, {"customdata": [2]}),
    )
    assert all(way and way.endswith("&path=1") for way in ways)
    assert links.along_path("/timeline") == "/timeline?path=1"


def test_a_run_without_a_path_offers_none() -> None:
    """The switch cannot be used where no step ties ranks together, and a link does not set it."""
    switch = controls.path_switch(slow_rank(), ViewState(shows_path=True))
    assert state_of(switch) == (True, False)
    switch = controls.path_switch(with_stays(slow_rank(), []), ViewState(shows_path=True))
    assert state_of(switch) == (False, True)


def state_of(switch: Component) -> tuple[bool, bool]:
    """Return the position of a switch, and True if it is disabled."""
    props = json.loads(json.dumps(switch, cls=PlotlyJSONEncoder))["props"]
    return props["checked"], props["disabled"]
