"""The selected collective shows when every rank entered it, and points at the last one."""

import pytest
from support.web.callbacks import call
from support.web.stores import SLOW_RANK, slow_rank, traced

from tracelens_dashboard.app.server import create_app
from tracelens_dashboard.figures.timeline import overlays, plot
from tracelens_dashboard.theme import LIGHT
from tracelens_dashboard.view import viewport
from tracelens_dashboard.view.viewport import Controls

STEP = 25


def selected() -> dict[str, int]:
    """Select rank 0's first reduction of a step in which rank 2 is late."""
    found = traced(SLOW_RANK).arrivals.filter(rank=0, step=STEP).sort("seq")
    return {"lane": 0, "at": found["start_ns"][-1] + 1 - slow_rank().run_window.start_ns}


def test_the_last_to_enter_is_pointed_at() -> None:
    """All four ranks enter; the arrow names rank 2, which is late in this step."""
    store = slow_rank()
    frame = viewport.frame(store, Controls(None, ["2"], "rank", selected()))
    assert frame.selected_call
    assert set(frame.selected_call.entered_ns_by_rank) == {0, 1, 2, 3}
    assert frame.selected_call.last_arriving_rank == 2
    changing_parts = plot.draw_changing(frame, viewport.picture(frame), LIGHT)
    pinned, points = overlays.arrival_marks(frame, LIGHT)
    assert changing_parts["data"][-2:] == [pinned, points]
    assert (len(pinned["x"]), len(points["x"])) == (1, 4)
    assert max(points["x"]) == pytest.approx(
        frame.seconds_since_start(frame.selected_call.last_arrival_ns)
    )
    assert "rank 2 arrives last" in changing_parts["annotations"][-1]["text"]
    assert changing_parts["shapes"][-1]["x0"] == pytest.approx(max(points["x"]))


@pytest.mark.parametrize("junk", [None, 3, {}, {"lane": 99, "at": 5}, {"lane": "x", "at": 1}])
def test_a_senseless_selection_selects_nothing(junk: object) -> None:
    """Nor does a moment at which no collective was under way."""
    store = slow_rank()
    for nothing in (junk, {"lane": 0, "at": 1}):
        assert viewport.frame(store, Controls(None, [], "rank", nothing)).selected_call is None


def test_a_click_selects_what_was_under_way() -> None:
    """The click is answered with details, and with the row and the moment that were meant."""
    app = create_app(slow_rank())
    click = {"xvals": [0.3], "yvals": [5]}
    answer = call(app, "timeline-details.children", {"timeline.clickData": click}).get_json()
    chosen = answer["response"]["timeline-selected"]["data"]
    assert chosen == {"lane": 0, "at": 300_000_000, "track": None}
