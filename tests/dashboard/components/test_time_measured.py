"""A marked stretch is measured exactly: its length, and what all ranks spent it on."""

import numpy as np
import pytest
from support.runs.frames import MS, scene_of
from support.web.stores import slow_rank

from tracelens.lod import search
from tracelens.lod.viewport import Window
from tracelens_dashboard.components.timeline import area


def test_spans_count_as_far_as_they_lie_within() -> None:
    """Two ranks, from the middle of data loading to the middle of backprop."""
    lanes = scene_of(2, 3).span_lanes
    spent = search.sum_by_category(lanes, Window(MS // 2, 9 * MS))
    assert spent == {"backprop": 8 * MS, "forward": 8 * MS, "data": MS}


def test_a_step_adds_up() -> None:
    """Over whole steps the sum is ranks times time."""
    store = slow_rank()
    window = store.window_of_steps(20, 39)
    assert window
    spent = search.sum_by_category(store.scene.span_lanes, window)
    assert sum(spent.values()) == pytest.approx(4 * window.width_ns, rel=0.01)
    late = np.isin(list(spent), ["wait"])
    assert late.any()


def test_the_sentence_names_length_and_shares() -> None:
    """Most time first, in words."""
    said = area.describe_time(slow_rank(), {"points": [], "range": {"x": [0.3, 0.2], "y": [0, 5]}})
    assert said.startswith("Selected: 100 ms, starting at 200 ms. All ranks: backprop ")
    assert "wait for other ranks" in said


@pytest.mark.parametrize(
    "junk",
    [
        None,
        {},
        {"range": 3},
        {"range": {"x": [1]}},
        {"range": {"x": ["a", 2]}},
        {"range": {"x": [1e300, 2]}},
    ],
)
def test_nonsense_measures_nothing(junk: object) -> None:
    """What the browser sends may be anything."""
    assert area.describe_time(slow_rank(), junk) == ""
