"""Step figures show true lengths for any size of run, and marks lead to the longest step."""

import numpy as np
import pytest
from support.web.stores import LATE, SLOW_RANK, open_run, slow_rank

from tracelens.lod import regimes
from tracelens.lod.step_times import CategoryTimes, StepGrid, StepTimes
from tracelens_dashboard.figures import axes, overview, step_durations
from tracelens_dashboard.pages import steps
from tracelens_dashboard.pages import steps as page
from tracelens_dashboard.theme import LIGHT
from tracelens_dashboard.view.state import ViewState


def all_step_times() -> StepTimes:
    """Return the step times of the run whose rank 2 is slow in steps 20-39."""
    return slow_rank().measure_step_times(slow_rank().category_times.categories)


def test_times_are_those_of_the_trace() -> None:
    """Median and longest of each step are those of the recorded steps; all parts sum to them."""
    store, step_times = slow_rank(), all_step_times()
    spent_ns = store.category_times.sum_time_ns(store.category_times.categories)
    assert np.allclose(step_times.rank_median_ns, np.median(spent_ns, axis=0))
    assert np.allclose(step_times.longest_ns, spent_ns.max(axis=0))
    assert step_times.sample_ns.shape == spent_ns.shape
    own = store.measure_step_times(steps.select_categories(store, steps.COMPUTE_TIME))
    assert set(own.longest_ranks[25:38]) == {2}


def test_what_steps_consist_of_adds_up_to_them() -> None:
    """The areas of a step are the mean rank's times in it; the sentence names the largest of them."""
    times = slow_rank().category_times
    drawing = overview.step_parts(times, LIGHT)
    heights = sum(np.asarray(area.y) for area in drawing.figure.data)
    assert np.allclose(heights, times.sum_time_ns(times.categories).mean(axis=0))
    names = [area.name for area in drawing.figure.data]
    biggest = max(drawing.figure.data, key=lambda area: float(np.sum(area.y))).name
    assert biggest in drawing.summary
    assert set(names) <= set(drawing.rows[0])


def test_the_slow_steps_are_a_regime() -> None:
    """The sentence says which steps are longer; the table lists three regimes; the finding is marked."""
    found = regimes.find_regimes(all_step_times().rank_median_ns)
    marks = [step_durations.Mark("Rank 2 late", 20, 39, is_fault=True)]
    drawing = step_durations.over_run(all_step_times(), found, marks, "step time", LIGHT)
    assert "in steps 20\N{EN DASH}39" in drawing.summary
    assert [row["first step"] for row in drawing.rows] == [0, 20, 40]
    assert drawing.figure.layout.annotations[0].text == "Rank 2 late"
    assert drawing.figure.layout.shapes[0].x0 == 19.5


def test_a_long_run_keeps_its_longest_step() -> None:
    """Of 50,000 steps as few points are drawn as there are pixels, and the longest is among them."""
    ns = np.full((1, 50_000, 3), 1_000_000, np.uint32)
    ns[0, 31_234, 1] = 9_000_000
    times = CategoryTimes(
        (0, 1, 2), tuple(range(50_000)), ("user",), ns, np.ones((50_000, 3), np.bool_), 1e6
    )
    found = StepTimes.from_times(times, ("user",))
    drawing = step_durations.over_run(
        found, regimes.find_regimes(found.rank_median_ns), [], "step time", LIGHT
    )
    longest = drawing.figure.data[0]
    assert len(longest.x) <= step_durations.MOST_POINTS
    assert max(longest.y) == 9_000_000
    assert [31_234, 1] in [point[:2] for point in longest.customdata]
    assert "on rank 1 in step 31234" in drawing.summary


def test_the_map_says_whom_a_cell_stands_for() -> None:
    """4096 ranks are drawn in few rows, and the one late rank is the darkest cell, and named."""
    ns = np.full((1, 500, 4096), 1_000_000, np.uint32)
    ns[0, 77, 3017] = 3_000_000
    times = CategoryTimes(
        tuple(range(4096)), tuple(range(500)), ("user",), ns, np.ones((500, 4096), np.bool_), 1e6
    )
    grid = StepGrid.from_times(times, ("user",), axes.MOST_ROWS, axes.MOST_COLUMNS)
    drawing = step_durations.by_rank(grid, LIGHT, (70, 80))
    cells = drawing.figure.data[0].z
    assert cells.shape == (axes.MOST_ROWS, axes.MOST_COLUMNS)
    assert np.sum(cells == 3_000_000) == 1
    assert drawing.summary.startswith("The longest is 3.00 ms, on rank 3017 in step 77.")
    assert drawing.rows[0] == {"rank": 3017, "step": 77, "duration": 3e6}
    assert "up to 26 ranks and 2 steps" in drawing.summary


def test_ranks_that_wait_for_each_other_are_told_apart_by_compute_time() -> None:
    """Where all take the same time the sentence says what to look at instead."""
    store = slow_rank()
    by_step_time, by_compute_time = (
        step_durations.by_rank_summary(
            StepGrid.from_times(
                store.category_times, steps.select_categories(store, name), 160, 320
            )
        )
        for name in (steps.WHOLE_STEP, steps.COMPUTE_TIME)
    )
    assert "choose compute time" in by_step_time
    assert "on rank 2 in step" in by_compute_time


def test_the_spread_counts_every_step_once() -> None:
    """Bars sum to ranks times steps; each leads to a step as long as it says."""
    drawing = step_durations.distribution(all_step_times(), "step time", LIGHT)
    bars = drawing.figure.data[0]
    assert sum(bars.y) == SLOW_RANK.ranks * SLOW_RANK.steps
    assert sum(row["steps of ranks"] for row in drawing.rows) == sum(bars.y)
    spent_ns = slow_rank().category_times.sum_time_ns(slow_rank().category_times.categories)
    for bin_begin_ns, width, count, (_, example) in zip(
        bars.x, bars.width, bars.y, bars.customdata, strict=True
    ):
        assert (example is None) == (count == 0)
        if example:
            assert bin_begin_ns <= spent_ns[example[0], example[1]] <= bin_begin_ns + width


@pytest.mark.parametrize("name", ["nonsense", None, steps.COMPUTE_TIME, "backprop"])
def test_a_choice_is_always_something(name: str | None) -> None:
    """Any value that a browser sends selects categories that exist."""
    store = slow_rank()
    assert set(steps.select_categories(store, name)) <= set(store.category_times.categories)
    assert steps.select_categories(store, name)


def test_marks_are_findings_of_a_part_of_the_run() -> None:
    """The page links the finding's steps, and names it."""
    shown = str(page.layout(open_run(SLOW_RANK, LATE), ViewState()))
    assert "Straggler: rank 2, backprop, steps 20\N{EN DASH}39" in shown


def test_some_very_long_steps_leave_colours_for_the_others() -> None:
    """Four warm-up steps of 40 take ten times as long: a step that takes half more is still seen."""
    ns = np.full((1, 40, 8), 100_000_000, np.uint32)
    ns[0, :4] = 1_000_000_000
    ns[0, 20:30, 3] = 150_000_000
    times = CategoryTimes(
        tuple(range(8)), tuple(range(40)), ("user",), ns, np.ones((40, 8), np.bool_), 1e8
    )
    drawing = step_durations.by_rank(StepGrid.from_times(times, ("user",), 160, 320), LIGHT)
    trace = drawing.figure.data[0]
    share = (150e6 - trace.zmin) / (trace.zmax - trace.zmin)
    assert 0.3 < share < 0.9
    assert trace.zmax <= step_durations.MOST_SCALE * 100e6


def test_noise_of_equal_steps_stays_pale() -> None:
    """The scale is tied to the step time: 3 % of it are no dark red."""
    draw = np.random.default_rng(1)
    ns = (1e8 * draw.normal(1, 0.03, (1, 60, 8))).astype(np.uint32)
    times = CategoryTimes(
        tuple(range(8)), tuple(range(60)), ("user",), ns, np.ones((60, 8), np.bool_), 1e8
    )
    trace = step_durations.by_rank(
        StepGrid.from_times(times, ("user",), 160, 320), LIGHT
    ).figure.data[0]
    shares = (np.array(trace.z) - trace.zmin) / (trace.zmax - trace.zmin)
    assert np.quantile(shares, 0.99) < 0.5
