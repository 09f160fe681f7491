"""A delay that moves from rank to rank is one finding, and no other."""

import numpy as np
import pytest
from support.runs.matrices import Floats, healthy, own_time

from tracelens.analyses.stragglers import detection, episodes

STAY = 8  # steps


def turns(matrices: list[Floats], extra: float, seed: int = 0) -> tuple[list[Floats], set[int]]:
    """Slow one rank at a time, each time another one, for a few steps each."""
    steps, ranks = matrices[0].shape
    order = np.random.default_rng(seed).permutation(ranks)
    visited = [int(order[turn % ranks]) for turn in range((steps - STAY) // STAY)]
    for turn, rank in enumerate(visited):
        first = STAY * (turn + 1)
        matrices[2][first : first + STAY, rank] += extra
    return matrices, set(visited)


@pytest.mark.parametrize("ranks", [6, 8, 64])
def test_turns_are_one_finding(ranks: int) -> None:
    """Single stays are neither stragglers nor stalls of their own."""
    for seed in range(3):
        matrices, visited = turns(healthy(seed, ranks, 160), 0.4, seed)
        (late,) = detection.find_episodes(own_time(matrices))
        assert (set(late.rank_columns), late.phase, late.pattern) == (
            visited,
            "backprop",
            "migrating",
        )
        assert late.delay_ns.sum(axis=1)[STAY:-STAY].mean() == pytest.approx(0.4 * 2e7, rel=0.3)


def test_ranks_late_together_do_not_wander() -> None:
    """Four ranks that are always late are permanent stragglers."""
    matrices = healthy(0, 16, 160)
    matrices[2][:, 4:8] += 0.3
    found = detection.find_episodes(own_time(matrices))
    assert {late.rank_columns for late in found} == {(4,), (5,), (6,), (7,)}
    assert {late.pattern for late in found} == {"persistent"}


@pytest.mark.parametrize("spiky", [False, True], ids=["smooth", "spiky"])
def test_noise_does_not_wander(*, spiky: bool) -> None:
    """Spikes hit each rank in turn, too, but do not stay."""
    for seed in range(4):
        found = detection.find_episodes(own_time(healthy(seed, 64, 160, spiky=spiky)))
        assert [late for late in found if late.pattern == "migrating"] == []


def test_it_is_told_where_others_disturbances_hide_it() -> None:
    """Spikes of hundreds of ranks are longer in every step, but never last this long."""
    matrices, visited = turns(healthy(0, 256, 160), 0.4)
    draw = np.random.default_rng(0)
    matrices[2] += (draw.random((160, 256)) < 0.03) * 1.5
    own = own_time(matrices)
    ((late, cost),) = episodes.price_episodes(own, float(own.total_compute_ns.max(axis=1).sum()))
    assert (late.pattern, set(late.rank_columns) <= visited) == ("migrating", True)
    assert cost.saving_share < 0.01


def test_noise_that_lasts_for_some_steps_does_not_wander() -> None:
    """It goes as far as noise does."""
    for seed in range(3):
        matrices = healthy(seed, 256, 80, noise=0.12, memory=0.85)
        own = own_time(matrices)
        assert episodes.price_episodes(own, float(own.total_compute_ns.max(axis=1).sum())) == []


def test_it_is_told_in_noise_that_does_not_last() -> None:
    """Outliers of many ranks are single steps, never this many in a row."""
    matrices, visited = turns(healthy(0, 256, 160, 0.12, 0.0), 0.4)
    (late,) = detection.find_episodes(own_time(matrices))
    assert (set(late.rank_columns), late.pattern) == (visited, "migrating")


def test_it_is_told_where_much_noise_is_as_far_out_as_a_short_delay() -> None:
    """Of 512 ranks in noise that lasts and spikes, dozens stand out at any time, but never so far."""
    matrices, visited = turns(healthy(0, 512, 120, 0.07, 0.8), 0.25)
    draw = np.random.default_rng(0)
    matrices[2] += (draw.random((120, 512)) < 0.05) * 0.25
    (late,) = detection.find_episodes(own_time(matrices))
    assert (late.pattern, set(late.rank_columns) <= visited) == ("migrating", True)
    assert len(late.rank_columns) >= len(visited) / 2
