"""Whom a late rank leaves innocent: nobody else is accused on its account."""

import numpy as np
import pytest
from support.runs.matrices import healthy, own_time
from support.tiers import few_or_many

from tracelens.analyses.stragglers import detection
from tracelens.analyses.stragglers.evidence import find_stalls
from tracelens.stats.window_scan import find_discoveries

RATE = 0.0002


def test_many_certain_findings_make_no_room_for_a_doubtful_one() -> None:
    """A doubtful rank stays doubtful in a run with clear stragglers."""
    certain, doubtful = np.full(8, 1e-20), np.array([1.5e-3])
    innocent = np.full(7, 0.5)
    holds = find_discoveries(np.concatenate([certain, doubtful, innocent]), 0.003)
    assert holds[:8].all()
    assert not holds[8:].any()


@pytest.mark.parametrize("runs", few_or_many(2, 8))
def test_a_rank_late_in_every_phase_is_alone(runs: int) -> None:
    """Noise that lasts for steps accuses no other rank than the slow one."""
    for seed in range(runs):
        matrices = healthy(seed, 16, 120, noise=0.04, memory=0.8)
        for values in matrices:
            values[:, 5] *= 1.3
        accused_ranks = {
            rank
            for late in detection.find_episodes(own_time(matrices))
            for rank in late.rank_columns
        }
        assert accused_ranks == {5}, f"seed {seed}"


def test_delays_wanders_among_spikes() -> None:
    """Others' spikes are last in many steps; what wanders is told all the same, of visited ranks."""
    matrices = healthy(3, 64, 120)
    draw = np.random.default_rng(7)
    visited = draw.permutation(64)[:14]
    for stay, rank in enumerate(visited):
        matrices[2][8 + 8 * stay : 16 + 8 * stay, rank] += 0.4
    matrices[2] += (draw.random((120, 64)) < 0.08) * draw.lognormal(-0.9, 0.7, (120, 64))
    (late,) = detection.find_episodes(own_time(matrices))
    assert late.pattern == "migrating"
    assert set(late.rank_columns) <= set(visited.tolist())
    assert len(late.rank_columns) >= 12


def test_rare_spikes_are_no_stalls() -> None:
    """Spikes so rare that most ranks have none come in fours by chance; many ranks, no accusation."""
    for seed in range(200):
        draw = np.random.default_rng(seed)
        excess = 0.005 * draw.standard_normal((115, 64))
        excess += 0.3 * (draw.random((115, 64)) < 0.0025)
        assert find_stalls(excess, np.arange(len(excess)), RATE) == [], f"seed {seed}"


def test_a_disturbance_of_some_steps_is_one_stall() -> None:
    """What lasts for some steps in a row, on any rank, is no reason to say that a rank stalls often."""
    for seed in range(100):
        draw = np.random.default_rng(seed)
        excess = 0.03 * draw.standard_normal((120, 64))
        for step, rank in np.argwhere(draw.random((120, 64)) < 0.005):
            excess[step : step + draw.integers(1, 5), rank] += 0.3
        assert find_stalls(excess, np.arange(len(excess)), RATE) == [], f"seed {seed}"
