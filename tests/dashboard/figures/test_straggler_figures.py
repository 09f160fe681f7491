"""Heat maps and bars of residuals keep the one late rank, name it, and bear odd runs."""

import numpy as np
import polars as pl
import pytest
from support.runs.frames import MS, run_of, times_of

from tracelens.lod import residuals
from tracelens_dashboard.figures import axes, stragglers
from tracelens_dashboard.theme import DARK, LIGHT


@pytest.mark.parametrize(
    ("ranks", "steps", "rank", "step", "row_name"),
    [
        (170, 330, 102, 211, "ranks 102-103"),
        pytest.param(512, 700, 300, 411, "ranks 300-303", marks=pytest.mark.slow),
    ],
)
def test_one_late_rank_of_many_survives(
    ranks: int, steps: int, rank: int, step: int, row_name: str
) -> None:
    """However rows and columns are merged, the greatest cell is the planted delay."""
    run = run_of(ranks, steps, {(rank, step): 40})
    residual = residuals.measure(times_of(run.times, range(ranks)))
    drawing = stragglers.by_rank(residual, LIGHT)
    cells = np.array(drawing.figure.data[0].z)
    assert cells.shape[0] <= axes.MOST_ROWS < ranks
    assert cells.shape[1] <= axes.MOST_COLUMNS < steps
    row, column = np.unravel_index(cells.argmax(), cells.shape)
    assert cells.max() == 40
    assert drawing.figure.data[0].y[row] == row_name
    assert step - 3 < drawing.figure.data[0].x[column] <= step
    assert drawing.summary.startswith(f"Largest residual over the run: rank {rank}, 40.0 ms")
    assert drawing.rows[0]["rank"] == rank


def test_a_host_is_as_late_as_its_latest_rank() -> None:
    """A row a host shows the maximum of its ranks, and its name is inert."""
    run = run_of(4, 5, {(3, 2): 10})
    late = residuals.measure(times_of(run.times, range(4)))
    hosts = {0: "a", 1: "a", 2: "<b>", 3: "<b>"}
    trace = stragglers.by_host(late, hosts, LIGHT).figure.data[0]
    assert list(trace.y) == ["a", "&lt;b&gt;"]
    assert np.array(trace.z)[1].tolist() == [0, 0, 10, 0, 0]


def test_missing_steps_are_gaps() -> None:
    """A rank that died has no cells after its death, rather than punctual ones."""
    run = run_of(3, 6, {(2, 1): 5})
    times = run.times.filter(~((pl.col("rank") == 0) & (pl.col("step") > 2)))
    late = residuals.measure(times_of(times, range(3)))
    cells = np.array(stragglers.by_rank(late, DARK).figure.data[0].z)
    assert np.isnan(cells[0, 3:]).all()
    assert not np.isnan(cells[1:]).any()


def test_the_bars_name_the_phase() -> None:
    """The latest rank comes first, and the sentence names the phase that was planted."""
    run = run_of(4, 10, {(1, step): 6 for step in range(10)})
    late = residuals.measure(times_of(run.times, range(4)))
    drawing = stragglers.by_category(
        late, lambda name: residuals.measure(times_of(run.times, range(4)), [name]), LIGHT
    )
    assert drawing.figure.data[0].name == "data loading"
    assert drawing.figure.data[0].y[0] == "rank 1 "
    assert drawing.figure.data[0].x[0] == 6
    assert "Rank 1 takes 6.00 ms per step longer than its peers in data loading" in drawing.summary


def test_a_run_without_lateness_says_so() -> None:
    """Where all ranks are equal, no rank is called late."""
    run = run_of(3, 4)
    late = residuals.measure(times_of(run.times, range(3)))
    assert stragglers.summary(late) == "No rank exceeds its peers in any step."
    bars = stragglers.by_category(late, lambda _: late, LIGHT)
    assert bars.summary == "No rank exceeds its peers."


def test_a_run_without_steps_says_so() -> None:
    """A run without steps shows a sentence instead of the map."""
    run = run_of(2, 1)
    late = residuals.measure(times_of(run.times.clear(), range(2)))
    assert stragglers.by_rank(late, LIGHT).summary == "No steps recorded."
    assert late.residual_ns.shape == (2, 0)


def test_one_rank_gets_no_comparison_with_peers() -> None:
    """A single rank is told so instead of being called late."""
    run = run_of(1, 3)
    late = residuals.measure(times_of(run.times, range(1)))
    assert stragglers.by_category(late, lambda _: late, LIGHT).summary.startswith("A single rank")
    assert late.compute_ns[0, 0] == 15 * MS


def test_noise_of_a_healthy_run_stays_pale() -> None:
    """The scale is tied to the step: what lasts 5 % of it is not even half way to the darkest."""
    draw = np.random.default_rng(0)
    compute = 1e8 * draw.normal(1, 0.02, (8, 60))
    found = residuals.compare(compute, tuple(range(8)), tuple(range(60)), 1e8)
    trace = stragglers.by_rank(found, LIGHT).figure.data[0]
    assert np.nanmax(np.array(trace.z)) < 0.5 * trace.zmax
    compute[:, :4] *= 10 * np.arange(1, 9)[:, None]
    warm = residuals.compare(compute, tuple(range(8)), tuple(range(60)), 1e8)
    assert warm.ceiling_ns <= 1.1e8
