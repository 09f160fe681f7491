"""Lateness is own time beyond the peers', and says so with one rank, two, or one missing."""

import numpy as np
import polars as pl
from support.runs.frames import MS, run_of, times_of

from tracelens.lod import residuals
from tracelens.lod.lanes import BLANK, FIRST_LEVEL, LEVELS


def test_the_late_rank_and_step_hold_the_excess() -> None:
    """A planted 30 ms is 30 ms of excess in that rank and step, and none elsewhere."""
    run = run_of(5, 8, {(3, 6): 30})
    late = residuals.measure(times_of(run.times, range(5)))
    assert late.residual_ns[3, 6] == 30 * MS
    assert np.count_nonzero(late.residual_ns) == 1
    assert late.total_delay_ns.argmax() == 3


def test_waiting_for_a_late_rank_is_not_lateness() -> None:
    """The victims' longer steps leave their own time as it was."""
    run = run_of(3, 4, {(0, 2): 50})
    late = residuals.measure(times_of(run.times, range(3)))
    assert (late.compute_ns[1:] == 15 * MS).all()


def test_of_two_ranks_the_slower_is_late() -> None:
    """With two ranks the faster one is the yardstick: the slower one is late by the difference."""
    late = residuals.compare(np.array([[10.0, 10.0], [10.0, 14.0]]), (0, 1), (0, 1))
    assert late.residual_ns.tolist() == [[0, 0], [0, 4]]


def test_a_single_rank_is_compared_with_its_own_steps() -> None:
    """Where nobody else trained, a step is late against the rank's usual step."""
    late = residuals.compare(np.array([[10.0, 10.0, 40.0]]), (0,), (0, 1, 2))
    assert late.residual_ns.tolist() == [[0, 0, 30]]


def test_ranks_are_compared_with_those_of_their_stage() -> None:
    """A stage with more work is not late; a rank of it that is late is, by the stage's measure."""
    compute_ns = np.full((6, 8), 100.0)
    compute_ns[3:] += 50
    compute_ns[4, 6] += 30
    late = residuals.compare(
        compute_ns, tuple(range(6)), tuple(range(8)), stage=np.repeat([0, 1], 3)
    )
    assert late.residual_ns[4, 6] == 30
    assert np.count_nonzero(late.residual_ns) == 1
    assert late.peers_ns.tolist() == [[100.0] * 8, [150.0] * 8]


def test_a_stage_of_one_rank_is_compared_with_its_own_steps() -> None:
    """As a run of one rank is."""
    own = np.array([[10.0, 10.0, 10.0], [20.0, 20.0, 29.0]])
    late = residuals.compare(own, (0, 1), (0, 1, 2), stage=np.array([0, 1]))
    assert late.residual_ns.tolist() == [[0, 0, 0], [0, 0, 9]]


def test_a_rank_that_was_not_there_is_blank() -> None:
    """A killed rank's missing steps are drawn as nothing, not as punctual, and hide nobody else."""
    run = run_of(4, 6, {(2, 5): 20})
    gone = (pl.col("rank") == 1) & (pl.col("step") >= 3)
    late = residuals.measure(times_of(run.times.filter(~gone), range(4)))
    assert (late.palette_indices[1, 3:] == BLANK).all()
    assert late.palette_indices[2, 5] == FIRST_LEVEL + LEVELS - 1


def test_noise_of_a_healthy_run_stays_pale() -> None:
    """Differences of one percent do not use the strong end of the ramp."""
    own = 100 + np.random.default_rng(0).normal(0, 1, (8, 50))
    levels = residuals.compare(own, tuple(range(8)), tuple(range(50))).palette_indices
    assert levels.max() < FIRST_LEVEL + LEVELS // 2


def test_one_slow_first_step_does_not_use_up_the_ramp() -> None:
    """A first step that loads libraries leaves the ramp to the steps that follow."""
    compute_ns = np.full((4, 200), 100.0)
    compute_ns[1, 0] = 5000.0
    compute_ns[2, 50:80] = 150.0
    levels = residuals.compare(compute_ns, tuple(range(4)), tuple(range(200))).palette_indices
    assert levels[2, 60] == FIRST_LEVEL + LEVELS - 1
