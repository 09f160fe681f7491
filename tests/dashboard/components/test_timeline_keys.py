"""Keys lead somewhere sensible from wherever one is, and nowhere rather than astray."""

from dataclasses import replace
from typing import Any

import pytest
from support.web.stores import LATE, SLOW_RANK, open_run, sharded, slow_rank

from tracelens.lod.viewport import Window
from tracelens_dashboard.components.timeline import keys
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.view import viewport
from tracelens_dashboard.view.state import MOST_PINS

EARLY = replace(LATE, steps=(3, 9), ranks=(1,))


def view_of(window: Window) -> dict[str, int]:
    return {"t0": window.start_ns, "t1": window.end_ns}


def step_view(store: Store, step: int) -> Window:
    """Return a view a step and a half wide whose middle is a step's."""
    found = store.window_of_steps(step, step)
    assert found
    middle = (found.start_ns + found.end_ns) // 2 - store.run_window.start_ns
    half = 3 * store.scene.median_step_ns // 4
    return Window(middle - half, middle + half)


def step_in_the_middle(store: Store, window: Window) -> int:
    middle = store.run_window.start_ns + (window.start_ns + window.end_ns) // 2
    steps_inside = store.step_windows.filter(
        (store.step_windows["start_ns"] <= middle) & (store.step_windows["end_ns"] > middle)
    )
    return int(steps_inside["step"][0])


@pytest.mark.parametrize(("key", "step"), [("]", 31), ("[", 29)])
def test_brackets_lead_from_step_to_step(key: str, step: int) -> None:
    """In a narrow view the next step comes to the middle, and the view keeps its width."""
    store = slow_rank()
    view_before = step_view(store, 30)
    view_after = keys.find_destination(store, key, view_of(view_before), None)
    assert view_after is not None
    assert step_in_the_middle(store, view_after) == step
    assert view_after.width_ns == view_before.width_ns


def test_the_first_and_last_steps_are_the_end_of_the_way() -> None:
    """At either end the view stays within the run."""
    store = slow_rank()
    run_window = Window(0, store.run_window.width_ns)
    for key, step in (("[", 0), ("]", 59)):
        view_after = keys.find_destination(
            store, key, view_of(step_view(store, step).clamp(run_window)), None
        )
        assert view_after is not None
        assert 0 <= view_after.start_ns < view_after.end_ns <= run_window.end_ns


def test_brackets_lead_from_finding_to_finding_in_a_wide_view() -> None:
    """From the whole run: the first finding, the second one, and back, in the order of time."""
    store = open_run(SLOW_RANK, LATE, EARLY)
    whole = {"t0": 0, "t1": store.run_window.width_ns}
    first_view = keys.find_destination(store, "]", whole, None)
    assert first_view is not None
    assert covered(store, first_view) == (3, 9)
    second_view = keys.find_destination(store, "]", view_of(first_view), None)
    assert second_view is not None
    assert covered(store, second_view) == pytest.approx((20, 39), abs=1)
    assert keys.find_destination(store, "[", view_of(second_view), None) == first_view


def covered(store: Store, window: Window) -> tuple[int, int]:
    """Return the first and the last step that lie wholly in a window."""
    origin = store.run_window.start_ns
    steps_inside = store.step_windows.filter(
        (store.step_windows["start_ns"] >= origin + window.start_ns)
        & (store.step_windows["end_ns"] <= origin + window.end_ns)
    )["step"]
    return int(steps_inside[0]), int(steps_inside[-1])


def test_fit_shows_the_clicked_span() -> None:
    """The span that is selected fills a third of the view; without one, the marked steps do."""
    store = slow_rank()
    moment_ns = step_view(store, 30).start_ns
    lane = 2
    selected = {"lane": lane, "at": moment_ns}
    position = viewport.read_position(store, selected)
    assert position is not None
    assert tuple(position) == (lane, moment_ns + store.run_window.start_ns, None)
    view = keys.find_destination(store, "f", {}, selected)
    assert view is not None
    assert view.start_ns < moment_ns < view.end_ns
    lanes = store.scene.span_lanes
    item = lanes.find_lane_items(lane, position.moment_ns, position.moment_ns + 1).start
    assert view.width_ns == pytest.approx(
        3 * int(lanes.ends_ns[item] - lanes.starts_ns[item]), rel=0.01
    )
    steps = keys.find_destination(store, "f", {"steps": [20, 39]}, None)
    assert steps is not None
    assert covered(store, steps)[0] in {19, 20}


def test_a_rank_is_pinned_and_let_go() -> None:
    """The same key does both; no more are pinned than there is room for, the last one in any case."""
    store = slow_rank()
    assert keys.toggle_pin(store, ["1"], 2) == ["1", "2"]
    assert keys.toggle_pin(store, ["1", "2"], 2) == ["1"]
    assert keys.toggle_pin(store, None, 3) == ["3"]
    full = keys.toggle_pin(store, [str(100 + pin) for pin in range(MOST_PINS)], 0)
    assert full is not None
    assert len(full) == MOST_PINS
    assert full[-1] == "0"
    assert keys.toggle_pin(store, [], 77) is None
    assert keys.toggle_pin(store, [], None) is None


def test_shards_are_not_pinned() -> None:
    """A parameter server's row is no worker's rank, though both have a number."""
    store = sharded()
    roles = {lane.role: index for index, lane in enumerate(store.scene.span_lanes.owners)}
    assert keys.rank_of(store, roles["ps"]) is None
    assert keys.rank_of(store, roles["worker"]) in store.ranks
    assert keys.rank_of(store, None) is None


@pytest.mark.parametrize("selected", [None, 7, {"lane": -1, "at": 3}, {"lane": 10**9, "at": 0}, {}])
@pytest.mark.parametrize("key", ["f", "x", None, 3, "p"])
def test_nonsense_leads_nowhere(key: object, selected: Any) -> None:
    assert keys.find_destination(slow_rank(), key, "view", selected) is None
