"""A host that lastingly leaves collectives later than others widens its clock's uncertainty."""

from __future__ import annotations

import numpy as np
import pytest

from tracelens.align.clocks.exits import FEWEST, lags

LAGS = np.array([5_000.0, 20_000.0, 40_000.0, 10_000.0])


def lasted(collectives: int, noise: float = 1_000.0) -> np.ndarray:
    """Draw collectives of one size into which each host comes last equally often."""
    draw = np.random.default_rng(1)
    early = draw.uniform(1e6, 5e6, (collectives, len(LAGS)))
    early[np.arange(collectives), np.arange(collectives) % len(LAGS)] = 0.0
    return np.asarray(3e6 + early + LAGS + draw.normal(0, noise, early.shape))


def test_lags_are_measured() -> None:
    """Each host's distance to the first is known to a microsecond, and the doubt covers it."""
    found = lags(lasted(400), np.ones(400, np.int64))
    assert found.lag - found.lag[0] == pytest.approx(LAGS - LAGS[0], abs=1_000)
    assert np.all(found.uncertainty()[1:] >= np.abs(LAGS - LAGS[0])[1:])


def test_noise_is_no_lag() -> None:
    """Where transfer varies by more than lags do, nothing is claimed."""
    assert not lags(lasted(80, noise=1e6), np.ones(80, np.int64)).uncertainty().any()


def test_unlike_sizes_are_not_compared() -> None:
    """A large collective lasts longer for everybody, whoever comes last into it."""
    times = lasted(400)
    sizes = np.arange(400) // len(LAGS) % 2
    times[sizes == 1] += 50e6
    found = lags(times, sizes)
    assert found.lag - found.lag[0] == pytest.approx(LAGS - LAGS[0], abs=1_500)


def test_who_is_last_into_large_collectives_more_often_lags_no_more() -> None:
    """Each size has its own usual length, whichever hosts it is mostly known of."""
    times = lasted(400)
    rows = np.arange(400)
    large = rows // len(LAGS) % 4 < np.where(rows % len(LAGS) < 2, 1, 3)
    times[large] += 50e6
    found = lags(times, large.astype(np.int64))
    assert found.lag - found.lag[0] == pytest.approx(LAGS - LAGS[0], abs=25_000)


def test_never_last_is_unknown() -> None:
    """A host that never comes last is as unsure as the worst that is known."""
    times = lasted(40 * FEWEST)
    times[:, 3] += 10e6
    found = lags(times, np.ones(len(times), np.int64))
    assert np.isnan(found.lag[3])
    assert found.uncertainty()[3] >= 30_000


def test_who_came_last_is_clear_however_much_earlier_the_others_came() -> None:
    """It waited for less than half as long as they did; where two come at once, none is last."""
    times = np.full((4 * FEWEST, len(LAGS)), 2.05e6)
    rows = np.arange(len(times))
    times[rows, rows % len(LAGS)] = 1e6
    assert np.isfinite(lags(times, np.ones(len(times), np.int64)).lag).all()
    times[rows, (rows + 1) % len(LAGS)] = 1.05e6
    assert np.isnan(lags(times, np.ones(len(times), np.int64)).lag).all()
