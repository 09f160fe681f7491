"""The sequential test of late ranks: few false alarms however often it looks, and quick true ones."""

import numpy as np
import pytest

from tracelens.stats.straggler_test import StragglerTest


def find_alarm(lags: np.ndarray) -> tuple[int, int | None]:
    """Return after which step a rank is named, and which; -1 and None if none is. [step, rank]."""
    test = StragglerTest(lags.shape[1])
    for number, row in enumerate(lags):
        straggler = test.add_step(row)
        if straggler is not None:
            return number, straggler
    return -1, None


def draw_lags(seed: int, steps: int, ranks: int, noise: float) -> np.ndarray:
    """Draw by how much ranks come later than the median of the others, [step, rank]."""
    times = 1.0 + noise * np.random.default_rng(seed).gamma(2.0, 1.0, (steps, ranks))
    return lag_of(times)


def lag_of(times: np.ndarray) -> np.ndarray:
    others = [np.delete(times, rank, axis=1) for rank in range(times.shape[1])]
    return np.asarray(times - np.stack([np.median(other, axis=1) for other in others], axis=1))


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_healthy_runs_raise_almost_no_alarm(ranks: int) -> None:
    alarms = [find_alarm(draw_lags(seed, 600, ranks, 0.1))[0] >= 0 for seed in range(150)]
    assert sum(alarms) <= 1


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize(("slowdown", "allowed_steps"), [(0.2, 30), (0.08, 100)])
@pytest.mark.parametrize("onset", [0, 50, 1000])
def test_late_rank_is_named_soon(
    ranks: int, slowdown: float, allowed_steps: int, onset: int
) -> None:
    delays = []
    for seed in range(20):
        lags = draw_lags(seed, onset + 200, ranks, 0.02)
        lags[onset:, 1] += slowdown
        step, straggler = find_alarm(lags)
        assert straggler == 1
        delays.append(step - onset)
    assert np.quantile(delays, 0.95) < allowed_steps + 5 * (
        onset >= 1000
    )  # later ones: smaller stakes


def test_rank_that_is_always_last_by_little_is_not_late() -> None:
    lags = np.tile([0.0, 0.01, -0.01], (2000, 1))
    assert find_alarm(lags) == (-1, None)


def test_steps_of_which_nothing_is_known_change_nothing_for_the_worse() -> None:
    lags = draw_lags(0, 300, 3, 0.02)
    lags[:, 2] += 0.3
    lags[::2] = np.nan
    assert find_alarm(lags)[1] == 2
