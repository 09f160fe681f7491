"""The strip adds up to all of the ranks' time, at every step."""

import numpy as np
import pytest
from support.runs.frames import run_of, times_of
from support.web.stores import slow_rank

from tracelens.lod import residuals
from tracelens_dashboard.figures import overview
from tracelens_dashboard.theme import LIGHT


def test_shares_add_up_to_everything() -> None:
    """At each step the categories' shares sum to 100 %."""
    store = slow_rank()
    drawing = overview.strip(store.category_times, store.step_windows, store.run_window, LIGHT)
    total = np.sum([area.y for area in drawing.figure.data], axis=0)
    assert total == pytest.approx(np.full(60, 100.0))
    assert "Largest category over the run: backprop" in drawing.summary


def test_thousands_of_steps_become_a_few_hundred_points() -> None:
    """The strip's size does not grow with the run."""
    run = run_of(1, 2000)
    windows = residuals.find_step_windows(run.steps)
    whole = slow_rank().run_window
    drawing = overview.strip(times_of(run.times, [0]), windows, whole, LIGHT)
    assert {len(area.x) for area in drawing.figure.data} == {overview.MOST_STRIP_POINTS}


def test_where_devices_work_the_times_are_those_of_hosts() -> None:
    """The waterfall is of devices then; what threads did must not read as its shares."""
    store = slow_rank()
    windows, whole = store.step_windows, store.run_window
    strip = overview.strip(store.category_times, windows, whole, LIGHT, of_hosts=True)
    assert strip.summary.endswith("of host thread time.")
    steps = overview.step_parts(store.category_times, LIGHT, of_hosts=True)
    assert steps.summary.startswith("These are host threads, not devices. Mean step ")
