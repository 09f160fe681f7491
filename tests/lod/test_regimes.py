"""A run's regimes: where its step time changes for long, and not where it only varies."""

import numpy as np
import pytest

from tracelens.lod import regimes


def noisy(steps: int, seed: int) -> np.ndarray:
    """Make step times of 20 ms with 3 % of noise that is correlated from step to step."""
    random, series = np.random.default_rng(seed), np.zeros(steps)
    for step in range(1, steps):
        series[step] = 0.6 * series[step - 1] + random.normal(0, 0.024)
    return np.asarray(20e6 * np.exp(series))


@pytest.mark.parametrize("steps", [120, 1000, 50_000])
def test_a_slow_third_is_found(steps: int) -> None:
    """Three levels, with edges to within a block of steps, in spite of outliers."""
    series = noisy(steps, 1)
    first_slow, last_slow = steps // 3, 2 * steps // 3
    series[first_slow:last_slow] *= 1.25
    series[:: max(steps // 40, 7)] *= 3
    levels = regimes.find_regimes(series)
    assert len(levels) == 3
    assert levels[1].first_index == pytest.approx(first_slow, abs=max(3, steps // 200))
    assert levels[1].last_index == pytest.approx(last_slow, abs=max(3, steps // 200))
    assert levels[1].median / levels[0].median == pytest.approx(1.25, abs=0.05)


def test_noise_and_spikes_are_no_regime() -> None:
    """Of forty runs that only vary, at most a few are divided."""
    divided = 0
    for seed in range(40):
        series = noisy(400, seed)
        series[np.random.default_rng(seed).integers(0, 400, 8)] *= 4
        divided += len(regimes.find_regimes(series)) > 1
    assert divided <= 2


def test_regimes_cover_the_series() -> None:
    """They touch, from the first to the last step; unknown steps and empty series do no harm."""
    series = np.concatenate([np.full(40, 1e6), [np.nan], np.full(40, 2e6)])
    found = regimes.find_regimes(series)
    assert [(part.first_index, part.last_index) for part in found] == [(0, 39), (41, 80)]
    assert regimes.find_regimes(np.zeros(0)) == []
    assert len(regimes.find_regimes(np.full(3, 5.0))) == 1
