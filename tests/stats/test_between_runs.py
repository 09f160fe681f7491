"""Whether runs differ by more than equal ones do, and how often that is wrong."""

import numpy as np
import pytest
from support.tiers import few_or_many

from tracelens.stats import between_runs
from tracelens.stats.between_runs import Level


def level(value: float) -> Level:
    return Level(value, np.zeros(0))


def error_rate(sigma: float, baselines: int, runs: int) -> float:
    """Return the share of equal runs that seem to differ upwards at 5 %."""
    random = np.random.default_rng(1)
    drawn = 100 * (1 + sigma * random.standard_normal((runs, baselines + 1)))
    changes = [
        between_runs.measure_change([level(v) for v in row[:-1]], level(row[-1]), 100.0)
        for row in drawn
    ]
    return float(np.mean([between_runs.is_rare(change.p_of_increase) for change in changes]))


runs = pytest.mark.parametrize("runs", few_or_many(300, 2000))


@runs
@pytest.mark.parametrize("baselines", [2, 3, 5])
def test_equal_runs_rarely_differ(baselines: int, runs: int) -> None:
    """In no more than the 5 % that are allowed, where runs differ as is usual."""
    assert error_rate(0.01, baselines, runs) <= 0.055
    assert error_rate(0.003, baselines, runs) <= 0.01


@runs
@pytest.mark.parametrize("baselines", [2, 3, 5])
@pytest.mark.parametrize("sigma", [0.05, 0.25])
def test_noisier_runs_than_usual_are_judged_by_what_they_differ(
    sigma: float, baselines: int, runs: int
) -> None:
    """The error stays near what is allowed (5 %), at many times the usual noise."""
    assert error_rate(sigma, baselines, runs) <= 0.07


def test_one_baseline_is_judged_by_noise_within_runs() -> None:
    """The interval covers the true change as often as it says."""
    covered = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        series = [factor * np.exp(0.05 * random.standard_normal(200)) for factor in (1.0, 1.02)]
        old, new = (
            between_runs.measure_level(one, mean=False, seed=k) for k, one in enumerate(series)
        )
        change = between_runs.measure_change([old], new, 1.0)
        assert change.low_difference is not None
        assert change.high_difference is not None
        covered += change.low_difference <= 0.02 <= change.high_difference
    assert covered >= 88


def test_few_steps_tell_nothing_with_one_baseline() -> None:
    few = between_runs.measure_level(np.arange(10.0), mean=False, seed=0)
    change = between_runs.measure_change([few], few, 1.0)
    assert (change.low_difference, change.p_of_increase, change.p_of_difference) == (
        None,
        None,
        None,
    )
    assert not between_runs.is_rare(change.p_of_difference)


def test_correlated_steps_are_less_certain() -> None:
    """Blocks of neighbours are resampled: noise that lasts counts for more."""
    random = np.random.default_rng(0)
    independent = random.standard_normal(1000)
    lasting = np.repeat(random.standard_normal(100), 10)
    variances = [
        between_runs.measure_level(one, mean=True, seed=0).variance
        for one in (independent, lasting)
    ]
    assert variances[1] > 3 * variances[0]


def test_runs_without_noise_differ_or_not_for_certain() -> None:
    """No noise at all: the same is the same, and more is more."""
    constant, higher = (
        between_runs.measure_level(np.full(50, v), mean=False, seed=0) for v in (1.0, 1.1)
    )
    assert between_runs.measure_change([constant], constant, 0.0).p_of_difference == 1.0
    assert between_runs.measure_change([constant], higher, 0.0).p_of_increase == 0.0
    assert between_runs.measure_change([constant], higher, 0.0).p_of_decrease == 1.0


def test_probabilities_are_adjusted_as_by_hand() -> None:
    """Holm: the smallest of three counts three times, the next twice; none falls below one before."""
    assert between_runs.adjust_for_count([0.04, None, 0.01, 0.03]) == [0.06, None, 0.03, 0.06]
    assert between_runs.adjust_for_count([0.9, 0.8]) == [1.0, 1.0]
    assert between_runs.adjust_for_count([]) == []


def test_no_value_is_negative() -> None:
    """Nor does an interval reach below nothing."""
    change = between_runs.measure_change([level(1.0), level(9.0)], level(2.0), 5.0)
    assert change.low_difference == -change.value_before
