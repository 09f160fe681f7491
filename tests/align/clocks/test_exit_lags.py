"""A host that lastingly leaves collectives later than others widens its clock's uncertainty."""

import numpy as np
import pytest

from tracelens.align.clocks.exits import MIN_CALLS_FOR_LAG, measure_lags

LAGS = np.array([5_000.0, 20_000.0, 40_000.0, 10_000.0])


def draw_durations(collectives: int, noise: float = 1_000.0) -> np.ndarray:
    """Draw collectives of one size into which each host comes last equally often."""
    draw = np.random.default_rng(1)
    early = draw.uniform(1e6, 5e6, (collectives, len(LAGS)))
    early[np.arange(collectives), np.arange(collectives) % len(LAGS)] = 0.0
    return np.asarray(3e6 + early + LAGS + draw.normal(0, noise, early.shape))


def test_lags_are_measured() -> None:
    """Each host's distance to the first is known to a microsecond, and the doubt covers it."""
    found = measure_lags(draw_durations(400), np.ones(400, np.int64))
    assert found.lag_ns - found.lag_ns[0] == pytest.approx(LAGS - LAGS[0], abs=1_000)
    assert np.all(found.bound_errors()[1:] >= np.abs(LAGS - LAGS[0])[1:])


def test_noise_is_no_lag() -> None:
    """Where transfer varies by more than lags do, nothing is claimed."""
    assert (
        not measure_lags(draw_durations(80, noise=1e6), np.ones(80, np.int64)).bound_errors().any()
    )


def test_unlike_sizes_are_not_compared() -> None:
    """A large collective lasts longer for every rank, also for the last to arrive."""
    times = draw_durations(400)
    sizes = np.arange(400) // len(LAGS) % 2
    times[sizes == 1] += 50e6
    found = measure_lags(times, sizes)
    assert found.lag_ns - found.lag_ns[0] == pytest.approx(LAGS - LAGS[0], abs=1_500)


def test_who_is_last_into_large_collectives_more_often_lags_no_more() -> None:
    """Each size has its own usual length, whichever hosts it is mostly known of."""
    times = draw_durations(400)
    rows = np.arange(400)
    large = rows // len(LAGS) % 4 < np.where(rows % len(LAGS) < 2, 1, 3)
    times[large] += 50e6
    found = measure_lags(times, large.astype(np.int64))
    assert found.lag_ns - found.lag_ns[0] == pytest.approx(LAGS - LAGS[0], abs=25_000)


def test_never_last_is_unknown() -> None:
    """A host that never comes last is as unsure as the worst that is known."""
    times = draw_durations(40 * MIN_CALLS_FOR_LAG)
    times[:, 3] += 10e6
    found = measure_lags(times, np.ones(len(times), np.int64))
    assert np.isnan(found.lag_ns[3])
    assert found.bound_errors()[3] >= 30_000


def test_who_came_last_is_clear_however_much_earlier_the_others_came() -> None:
    """It waited less than half as long as the others; if two arrive together, none is last."""
    times = np.full((4 * MIN_CALLS_FOR_LAG, len(LAGS)), 2.05e6)
    rows = np.arange(len(times))
    times[rows, rows % len(LAGS)] = 1e6
    assert np.isfinite(measure_lags(times, np.ones(len(times), np.int64)).lag_ns).all()
    times[rows, (rows + 1) % len(LAGS)] = 1.05e6
    assert np.isnan(measure_lags(times, np.ones(len(times), np.int64)).lag_ns).all()
