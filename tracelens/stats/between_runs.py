"""What a run measures, and whether it differs from others by more than they differ among themselves.

A run counts as one sample: its steps share a machine, a placement and a time of day. Many steps make
its own median certain and say nothing about the next run. With several baselines their spread is the
null model; with one, only the noise within the runs is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens.stats.tails import student_tail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Floats

MAX_STEPS_RESAMPLED: Final = 2000  # steps: one of a longer run stands for some neighbours [policy]
MIN_STEPS_TO_RESAMPLE_RUN: Final = 30  # steps: fewer do not tell how certain a level is [chosen]
# samples: as many are drawn for the interval of a run's level [policy]
BOOTSTRAP_SAMPLES_OF_RUN: Final = 400
# share: equal runs differ by this standard deviation [chosen]
USUAL_DEVIATION_OF_RUNS: Final = 0.01
# degrees of freedom: the usual deviation of runs has this weight [chosen]
FREEDOM_OF_USUAL_DEVIATION: Final = 3
# probability: runs that are likelier to be equal are not reported as different [policy]
MAX_P_VALUE_OF_CHANGE: Final = 0.05


@dataclass(frozen=True, eq=False)
class Level:
    """The median (or mean) of a run's steps, and resamples of it, [sample]; empty of a short run."""

    value: float
    resampled_values: Floats

    @property
    def variance(self) -> float:
        """Measure how uncertain the value is within its run."""
        return float(self.resampled_values.var(ddof=1)) if len(self.resampled_values) else 0.0


@dataclass(frozen=True)
class Change:
    """How much `value_after` is beyond `value_before`, the mean of the baselines, with a 95 % interval.

    Equal runs differ so far upwards with probability `p_of_increase`, downwards with `p_of_decrease`;
    these and the interval are null where neither several baselines nor enough steps tell.
    `deviation_of_baselines` is their standard deviation, null of one.
    """

    value_before: float
    value_after: float
    low_difference: float | None = None
    high_difference: float | None = None
    p_of_increase: float | None = None
    p_of_decrease: float | None = None
    deviation_of_baselines: float | None = None

    @property
    def difference(self) -> float:
        """Return the difference, in the unit of the values."""
        return self.value_after - self.value_before

    @property
    def p_of_difference(self) -> float | None:
        """Return the probability that equal runs differ so far, in either direction."""
        if self.p_of_increase is None or self.p_of_decrease is None:
            return None
        return min(1.0, 2 * min(self.p_of_increase, self.p_of_decrease))

    def to_share(self, value: float | None) -> float | None:
        """Return a difference as a share of `value_before`; null where there was nothing before."""
        return None if value is None or not self.value_before else value / self.value_before


def measure_level(series: Floats, *, mean: bool, seed: int) -> Level:
    """Return the median of a run's steps, [step], or their mean, and resamples of it.

    Blocks of neighbouring steps are resampled, as steps are correlated (Künsch 1989). Of a long run
    every n-th step counts. Runs that are compared have a `seed` each.
    """
    selected_steps = series[:: max(-(-len(series) // MAX_STEPS_RESAMPLED), 1)]
    average = np.mean if mean else np.median
    value = float(average(selected_steps)) if len(selected_steps) else 0.0
    if len(selected_steps) < MIN_STEPS_TO_RESAMPLE_RUN:
        return Level(value, resampled_values=np.zeros(0))
    return Level(value, resampled_values=_resample(selected_steps, average, seed))


def measure_change(baselines: Sequence[Level], new: Level, usual_size: float) -> Change:
    """Compare a run with baselines.

    The variance of a run is that of the baselines, moderated by what is known beforehand: a standard
    deviation of `USUAL_DEVIATION_OF_RUNS` x `usual_size`, worth `FREEDOM_OF_USUAL_DEVIATION` degrees of
    freedom (as in Smyth 2004). Where baselines differ by more than that, only they count.

    Args:
        baselines: One at least.
        new: The run to judge.
        usual_size: A usual value: what equal runs differ by is a share of it.
    """
    values = np.array([level.value for level in baselines])
    baseline, run_count = float(values.mean()), len(values)
    variance_within = float(np.mean([level.variance for level in baselines]))
    if run_count == 1:
        return _compare_two(baselines[0], new)
    variance_between = float(values.var(ddof=1))
    prior_variance = (USUAL_DEVIATION_OF_RUNS * usual_size) ** 2 + variance_within
    freedom, variance = run_count - 1, variance_between
    if variance_between <= prior_variance:
        freedom += FREEDOM_OF_USUAL_DEVIATION
        variance = (
            (run_count - 1) * variance_between + FREEDOM_OF_USUAL_DEVIATION * prior_variance
        ) / freedom
    error = np.sqrt(variance * (1 + 1 / run_count) + max(0.0, new.variance - variance_within))
    delta = new.value - baseline
    half_width = _find_t_quantile(freedom) * float(error)
    low = max(delta - half_width, min(delta, -baseline))  # no value is negative
    more, less = _find_tail_probabilities(delta, float(error), freedom)
    return Change(
        value_before=baseline,
        value_after=new.value,
        low_difference=low,
        high_difference=delta + half_width,
        p_of_increase=more,
        p_of_decrease=less,
        deviation_of_baselines=float(np.sqrt(variance_between)),
    )


def adjust_for_count(probabilities: Sequence[float | None]) -> list[float | None]:
    """Adjust probabilities for how many there are (Holm 1979); those that are null do not count."""
    known_probabilities = sorted(
        (p, index) for index, p in enumerate(probabilities) if p is not None
    )
    adjusted: list[float | None] = [None] * len(probabilities)
    largest_p = 0.0
    for smaller_count, (p, index) in enumerate(known_probabilities):
        largest_p = max(largest_p, min(1.0, p * (len(known_probabilities) - smaller_count)))
        adjusted[index] = largest_p
    return adjusted


def is_rare(probability: float | None) -> bool:
    """Return True if equal runs would rarely differ so far; not where that is not known."""
    return probability is not None and probability < MAX_P_VALUE_OF_CHANGE


def _compare_two(baseline: Level, new: Level) -> Change:
    """Compare a run with a single baseline: only the noise within both is known."""
    if not len(baseline.resampled_values) or not len(new.resampled_values):
        return Change(value_before=baseline.value, value_after=new.value)
    low, high = np.percentile(new.resampled_values - baseline.resampled_values, (2.5, 97.5))
    error = float(np.sqrt(baseline.variance + new.variance))
    more, less = _find_tail_probabilities(new.value - baseline.value, error, np.inf)
    return Change(
        value_before=baseline.value,
        value_after=new.value,
        low_difference=float(low),
        high_difference=float(high),
        p_of_increase=more,
        p_of_decrease=less,
    )


def _find_tail_probabilities(delta: float, error: float, freedom: float) -> tuple[float, float]:
    """Return the probabilities of a difference at least so far up, and so far down, by Student's t.

    `error` is the standard error of `delta`, and `freedom` its degrees of freedom.
    """
    if not error:
        return float(delta <= 0), float(delta >= 0)
    return tuple(student_tail(np.array([delta, -delta]) / error, freedom).tolist())


def _find_t_quantile(freedom: float) -> float:
    from scipy import special  # noqa: PLC0415 - few runs are compared

    return float(special.stdtrit(freedom, 0.975))


def _resample(series: Floats, average: Any, seed: int) -> Floats:
    """Return averages (`np.mean` or `np.median`) of resampled blocks of neighbours, [sample]."""
    step_count = len(series)
    block_size = max(round(step_count ** (1 / 3)), 1)
    random = np.random.default_rng(seed)
    shape = BOOTSTRAP_SAMPLES_OF_RUN, -(-step_count // block_size)
    first_rows = random.integers(0, step_count - block_size + 1, shape)  # [sample, block]
    rows = (first_rows[:, :, None] + np.arange(block_size)).reshape(len(first_rows), -1)
    return np.asarray(average(series[rows[:, :step_count]], axis=1))
