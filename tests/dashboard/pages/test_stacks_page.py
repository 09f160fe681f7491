"""The page of stacks: the code that a rank spends longer in than its peers, and when it ran."""

import json
from dataclasses import replace
from typing import Any

import pytest
from dash.exceptions import PreventUpdate
from plotly.utils import PlotlyJSONEncoder
from support.runs.sampled import LATE_RANK, MAIN, SLOW, WORK, sampled
from support.web.stores import LATE, slow_rank
from support.web.views import view_of

from tracelens_dashboard.components import finding_card
from tracelens_dashboard.figures import axes, sampled_stacks
from tracelens_dashboard.figures.drawing import Drawing
from tracelens_dashboard.pages import stacks as page
from tracelens_dashboard.theme import DARK, LIGHT
from tracelens_dashboard.view import links, peer_stacks
from tracelens_dashboard.view.state import ViewState


def run_window() -> list[int]:
    """Return the window of the whole run, as the page keeps it."""
    return [sampled().run_window.start_ns, sampled().run_window.end_ns]


def calls(rank: int, window: Any = None) -> Drawing:
    """Draw the calls of a rank's backprop."""
    return page._draw_calls(sampled(), LIGHT, str(rank), "backprop", window or run_window())


def test_the_late_ranks_function_is_named_and_red() -> None:
    """The excess is followed down to it; what all do alike stays pale."""
    drawing = calls(LATE_RANK)
    assert drawing.summary.startswith("Rank 2 takes ")
    assert drawing.summary.endswith("of 3 other ranks, most of it in slow_down (faults.py:46).")
    (flame,) = drawing.figure.data
    colours = dict(zip(flame.labels, flame.marker.colors, strict=True))
    assert colours["slow_down (faults.py:46)"] != colours["backward (model.py:7)"]
    assert drawing.rows[0]["time (ms)"] == pytest.approx(flame["values"][0] / 1e6, abs=0.001)


def test_a_peer_takes_no_longer_than_the_others() -> None:
    assert "does not exceed the median" in calls(0).summary


def test_a_call_is_no_longer_than_its_caller() -> None:
    """So that the icicle can be drawn: values of callees add up to at most their caller's."""
    (flame,) = calls(LATE_RANK).figure.data
    value = dict(zip(flame.ids, flame["values"], strict=True))
    parents = list(zip(flame.ids, flame.parents, strict=True))
    for call, parent in parents:
        time_of_callees = sum(
            v
            for c, p, v in zip(flame.ids, flame.parents, flame["values"], strict=True)
            if p == call
        )
        assert time_of_callees <= value[call] * 1.000001
        assert parent == "" or parent in value


def test_frames_come_with_the_median_peers_time() -> None:
    """The one that the peers never enter comes first, in the table as in the chart."""
    drawing = page._draw_functions(sampled(), DARK, str(LATE_RANK), "backprop", run_window())
    assert drawing.rows[0]["frame"] == SLOW
    assert drawing.rows[0]["median peer (ms)"] == 0
    assert drawing.summary.startswith("slow_down (faults.py:46): ")
    assert next(row for row in drawing.rows if row["frame"] == MAIN)["self time (ms)"] == 0


def test_when_a_frame_ran_leads_to_its_spans() -> None:
    """Only the late rank has cells; a click shows that rank at that time."""
    drawing = page._draw_times(sampled(), LIGHT, str(LATE_RANK), "backprop", run_window(), SLOW)
    (heat,) = drawing.figure.data
    row = list(heat.y).index("rank 2 ")
    assert heat.z[row].max() > 0
    assert sum(other.max() for other_row, other in enumerate(heat.z) if other_row != row) == 0
    best = int(heat.z[row].argmax())
    point = axes.read_cell_values({"customdata": heat.customdata[row][best]})
    view = view_of(page._link_to_moment(sampled(), point))
    assert view.pinned_ranks == (LATE_RANK,)
    assert view.start_ns is not None
    assert view.start_ns <= point["customdata"][1]
    shown = page._draw_times(sampled(), LIGHT, str(LATE_RANK), "backprop", run_window(), None)
    assert shown.summary.startswith("slow_down")  # before any click, the first of the table
    assert WORK not in drawing.summary


def test_little_time_tells_nothing() -> None:
    """A window of some milliseconds has too few samples."""
    drawing = calls(LATE_RANK, [run_window()[0], run_window()[0] + 10**7])
    assert drawing.summary == sampled_stacks.FEW_SAMPLES


def test_a_finding_leads_to_its_code() -> None:
    """The link has its rank and steps, and the page begins with them and with its phase."""
    view = view_of(links.to_stacks(sampled(), LATE))
    assert (view.pinned_ranks, view.marked_steps) == ((2,), (20, 39))
    seen = page._find_window(sampled(), view)
    assert seen == sampled().window_of_steps(20, 39)
    layout = json.dumps(page.layout(sampled(), view), cls=PlotlyJSONEncoder)
    assert "steps 20\\u201339" in layout
    assert peer_stacks.choose_rank(sampled(), view.pinned_ranks) == 2
    assert peer_stacks.choose_phase(sampled(), 2) == "backprop"
    assert "Sampled code" in json.dumps(finding_card.card(sampled(), LATE), cls=PlotlyJSONEncoder)
    nobody = replace(LATE, ranks=())
    assert "Sampled code" not in json.dumps(
        finding_card.card(sampled(), nobody), cls=PlotlyJSONEncoder
    )


def test_without_samples_it_says_how_to_get_them() -> None:
    layout = json.dumps(page.layout(slow_rank(), ViewState()), cls=PlotlyJSONEncoder)
    assert "tracelens record --sample" in layout
    assert "Sampled code" not in json.dumps(
        finding_card.card(slow_rank(), LATE), cls=PlotlyJSONEncoder
    )


@pytest.mark.parametrize("values", [(None, None, None), ("77", "x", [1]), ([], {}, ["a", "b"])])
def test_what_makes_no_sense_is_the_first_rank_at_any_time(values: tuple[Any, ...]) -> None:
    asked = peer_stacks.read(sampled(), *values)
    assert (asked.rank, asked.phase, asked.window) == (0, None, sampled().run_window)


@pytest.mark.parametrize("frame", [None, "", 3, "x" * 10_000, ["a"]])
def test_what_is_no_frame_is_not_chosen(frame: Any) -> None:
    with pytest.raises(PreventUpdate):
        page._read_frame(frame)


def test_frames_are_named_without_folders_or_markup() -> None:
    """Only the file's name is shown, markup is text, and long names are cut."""
    assert sampled_stacks.shorten_frame("f (/a/b/c.py:3)") == "f (c.py:3)"
    assert sampled_stacks.shorten_frame("f (C:\\a\\c.py:3)") == "f (c.py:3)"
    assert sampled_stacks.shorten_frame("<module> (c.py:3)") == "&lt;module&gt; (c.py:3)"
    assert sampled_stacks.shorten_frame("g" * 50, 10) == "g" * 9 + "…"
