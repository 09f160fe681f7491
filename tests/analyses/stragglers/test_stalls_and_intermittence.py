"""A rank that stalls is named by how long it stalls, and by how regularly, where counts say little."""

from dataclasses import replace

import numpy as np
import pytest
from support.runs.matrices import healthy, own_time

from tracelens.accounting import compute_time
from tracelens.analyses.stragglers import detection
from tracelens.analyses.stragglers.evidence import find_stalls

RATE = 0.0002


@pytest.mark.parametrize("seed", range(5))
def test_six_regular_stalls_among_three_ranks(seed: int) -> None:
    """One of three would have all six in one of 243 runs; but every ninth step, too?"""
    matrices = healthy(seed, 3, 60)
    matrices[1][6::9, 1] += 8.0
    (late,) = detection.find_episodes(own_time(matrices))
    assert (late.rank_columns, late.phase, late.pattern, late.period_steps) == (
        (1,),
        "forward",
        "sparse",
        9,
    )
    assert late.late_step_rows.tolist() == list(range(6, 60, 9))


IRREGULAR = [6, 11, 25, 31, 47, 52]


@pytest.mark.parametrize(("length", "named"), [(0.3, []), (8.0, [1])])
def test_six_irregular_stalls_among_three_ranks(length: float, named: list[int]) -> None:
    """Counted, some rank has all short ones often enough; long ones are more than equal ranks lose."""
    residuals = 0.01 * np.random.default_rng(0).standard_normal((60, 3))
    residuals[IRREGULAR, 1] += length
    assert [one.rank_column for one in find_stalls(residuals, np.arange(60), RATE)] == named


@pytest.mark.parametrize("seed", range(3))
def test_long_stalls_of_any_rank_are_no_ones_fault(seed: int) -> None:
    """However long they are, if all three ranks have some."""
    draw = np.random.default_rng(seed)
    residuals = 0.01 * draw.standard_normal((120, 3))
    for row in draw.choice(np.arange(0, 120, 5), 12, replace=False):
        residuals[row, draw.integers(3)] += 8.0
    assert find_stalls(residuals, np.arange(120), RATE) == []


def test_stalls_that_others_wait_for_without_a_span() -> None:
    """Then all ranks take as long in these steps, but not in the same phases: the steps count."""
    healthy_time = own_time(healthy(3, 3, 60))
    rows, data = [8, 15, 27, 33, 41, 55], healthy_time.phase_names.index("data")
    longer = healthy_time.compute_ns.copy()
    for rank in range(3):
        longer[data if rank == 1 else healthy_time.phase_names.index("backprop"), rows, rank] += (
            6 * healthy_time.typical_step_ns
        )
    settled = compute_time._find_comparable_rows(longer)
    assert settled[rows].all()
    late = detection.find_episodes(
        replace(healthy_time, compute_ns=longer, is_comparable_row=settled)
    )
    assert (1, "data") in [(*one.rank_columns, one.phase) for one in late]
    longer[data, rows] = 6 * healthy_time.typical_step_ns
    assert not compute_time._find_comparable_rows(longer)[rows].any()


@pytest.mark.parametrize("ranks", [4, 8, 64])
def test_small_disturbances_hide_no_long_stalls(ranks: int) -> None:
    """All ranks are disturbed a little now and then; one stalls as often, ten times as long."""
    draw = np.random.default_rng(ranks)
    excess = 0.01 * draw.standard_normal((300, ranks))
    for rank in range(ranks):
        excess[draw.choice(300, 12, replace=False), rank] += 0.12
    rows = np.sort(draw.choice(np.arange(0, 300, 5), 12, replace=False))
    excess[rows, 2] += 1.2
    assert [one.rank_column for one in find_stalls(excess, np.arange(len(excess)), RATE)] == [2]


@pytest.mark.parametrize("seed", range(4))
def test_a_delay_that_comes_and_goes_has_its_own_steps(seed: int) -> None:
    """On for thirty steps, off for thirty: each while is found, and what lies between is no loss."""
    matrices = healthy(seed, 8, 245)
    is_delayed = np.zeros(245, np.bool_)
    for first_step in (35, 95, 155, 215):
        is_delayed[first_step : first_step + 30] = True
    matrices[2][is_delayed, 5] += 0.3
    (late,) = detection.find_episodes(own_time(matrices))
    assert (late.rank_columns, late.phase, late.pattern) == ((5,), "backprop", "intermittent")
    assert np.count_nonzero((late.delay_ns[:, 5] > 0) != is_delayed) <= 8
    assert late.delay_ns[:, 5].sum() == pytest.approx(120 * 0.3 * 2e7, rel=0.15)


def test_a_phase_that_one_rank_has_alone_is_seen_in_any_noise() -> None:
    """Nine garbage collections of half a step: others' zeros are usual, not the pauses themselves."""
    matrices = [*healthy(0, 512, 120, 0.06, 0.8), np.zeros((120, 512))]
    draw = np.random.default_rng(0)
    matrices[2] += (draw.random((120, 512)) < 0.05) * 0.5
    matrices[3][12::13, 7] = 0.3
    own = replace(own_time(matrices), phase_names=("data", "forward", "backprop", "gc"))
    (late,) = detection.find_episodes(own)
    assert (late.rank_columns, late.phase, late.pattern) == ((7,), "gc", "sparse")
    assert set(range(12, 120, 13)) <= set(late.late_step_rows.tolist())
