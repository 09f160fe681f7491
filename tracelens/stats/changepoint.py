"""Change points of a series: in which rows it is at an upper level, and what course it takes there.

Two levels are fitted. Whoever is nearer to the upper one is in it, for as many runs of rows as are worth
their edges (Schwarz 1978: each costs the logarithm of the number of rows); what is far beyond a level
says nothing more about where it begins, so single spikes neither make an edge nor hide one (bounded
loss: Fearnhead & Rigaill 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.stats.robust import (
    block_edges,
    block_medians,
    measure_deviation,
    measure_step_deviation,
)

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Floats
    from tracelens.model.findings import Pattern

MIN_STEPS_IF_NO_STALL: Final = 4  # steps: a delay of fewer steps is a stall [calibrate]
# steps: each run of an intermittent delay is as long [calibrate]
MIN_STEPS_OF_RUN_OF_SEVERAL: Final = 4
# ratio: a rising line may leave at most this much of the deviation of two levels [calibrate]
MAX_DEVIATION_RATIO_IF_DRIFTING: Final = 0.9
# ratio: levels on and off may cost at most this much of one run's cost [calibrate]
MAX_COST_RATIO_IF_ON_AND_OFF: Final = 0.9
QUANTILE_TO_START_TWO_MEANS: Final = 0.25  # share: both levels start at this quantile [calibrate]
ROUNDS_OF_TWO_MEANS: Final = 4  # rounds: two means are fitted to all rows as often [policy]
ROUNDS_OF_TWO_LEVELS: Final = 4  # rounds: levels and their runs are fitted as often [policy]
# standard deviations: what is farther beyond a level says no more about edges [calibrate]
DEVIATIONS_BEYOND_LEVEL_TO_CLIP: Final = 0.5
# steps: the median of fewer steps outside is taken as 0 [calibrate]
MIN_STEPS_OF_LOWER_LEVEL: Final = 16
# share: the lower level is negative only if as many steps are outside [calibrate]
MIN_SHARE_OF_STEPS_FOR_NEGATIVE_LEVEL: Final = 0.25
# share: a delay of fewer of all steps is transient [calibrate]
MIN_SHARE_OF_STEPS_IF_PERSISTENT: Final = 0.6
MIN_BLOCKS_OF_RISE: Final = 3  # blocks: a line through fewer is no drift [calibrate]


@dataclass(frozen=True, eq=False)
class Course:
    """Runs of rows at the upper level (first and last, inclusive), and the delay that they explain.

    `delays`, [row], is 0 outside of runs, in the unit of the series. `cost` is the sum of the squares
    that it leaves, and what its edges cost.
    """

    upper_runs: tuple[tuple[int, int], ...]
    delays: Floats
    pattern: Pattern
    cost: float = 0.0

    @property
    def first_row(self) -> int:
        """Its first row."""
        return self.upper_runs[0][0]

    @property
    def last_row(self) -> int:
        """Its last row."""
        return self.upper_runs[-1][1]

    @property
    def is_upper(self) -> Flags:
        """Which rows are at the upper level."""
        return mark_runs(self.upper_runs, len(self.delays))

    @property
    def has_mostly_stalls(self) -> bool:
        """Whether most of the delayed rows are in several runs that are short as stalls are."""
        lengths = np.array([last - first + 1 for first, last in self.upper_runs])
        return len(lengths) > 1 and bool(
            lengths[lengths < MIN_STEPS_IF_NO_STALL].sum() > lengths.sum() / 2
        )

    @property
    def mean_delay(self) -> float:
        """The mean delay of the rows in runs, in the unit of the series."""
        return float(self.delays[self.is_upper].mean())


def mark_runs(runs: tuple[tuple[int, int], ...], count: int) -> Flags:
    """Find which of `count` rows runs hold."""
    is_inside = np.zeros(count, np.bool_)
    for first_row, last_row in runs:
        is_inside[first_row : last_row + 1] = True
    return is_inside


def fit_course(residuals: Floats, first_row: int, last_row: int, max_ratio: float) -> Course:
    """Follow one rank's excess from a window found in it to the edges and shape of one run.

    It rises if a line leaves less than `max_ratio` times the misfit of two levels.
    """
    is_inside = mark_runs(((first_row, last_row),), len(residuals))
    return _prefer_rising(residuals, _fit_two_levels(residuals, is_inside), max_ratio)


def fit_courses(residuals: Floats, is_inside: Flags, *, scattered: bool = False) -> Course:
    """Follow one rank's excess from rows in which it was found to all runs at about that level.

    `residuals` are the excess, [row], `is_inside` flags. `scattered` rows may be short runs; where most
    of the excess lasts for a block of rows or more, what is shorter is noise.
    """
    if scattered:
        short_course = _fit_two_levels(residuals, is_inside, shortest=0)
        if short_course.has_mostly_stalls:
            return short_course
    best_course = _prefer_rising(
        residuals, _fit_two_levels(residuals, is_inside), MAX_DEVIATION_RATIO_IF_DRIFTING
    )
    if best_course.pattern != "drifting":
        course_of_several = _fit_two_levels(
            residuals, best_course.is_upper, shortest=MIN_STEPS_OF_RUN_OF_SEVERAL
        )
        best_course = course_of_several if len(course_of_several.upper_runs) > 1 else best_course
    is_upper = _find_upper_rows(residuals)
    if is_upper.all() or not is_upper.any():
        return best_course
    # Where a rank is on and off for about as long, no window shows both levels.
    on_and_off = _fit_two_levels(residuals, is_upper, shortest=MIN_STEPS_OF_RUN_OF_SEVERAL)
    is_cheaper = (
        len(on_and_off.upper_runs) > 1
        and on_and_off.cost < MAX_COST_RATIO_IF_ON_AND_OFF * best_course.cost
    )
    return on_and_off if is_cheaper else best_course


def _find_upper_rows(residuals: Floats) -> Flags:
    """Find which rows, [row], are nearer to the upper one of two levels (two means, from quartiles)."""
    quantiles = [QUANTILE_TO_START_TWO_MEANS, 1 - QUANTILE_TO_START_TWO_MEANS]
    lower, upper = np.quantile(residuals, quantiles)
    for _ in range(ROUNDS_OF_TWO_MEANS):
        is_upper = np.asarray(residuals > (lower + upper) / 2)
        if is_upper.all() or not is_upper.any():
            break
        lower, upper = residuals[~is_upper].mean(), residuals[is_upper].mean()
    return is_upper


def _prefer_rising(residuals: Floats, flat: Course, max_ratio: float) -> Course:
    rising = _fit_rise(residuals, flat.last_row)
    if rising is not None and _measure_deviation_from(
        residuals, rising
    ) < max_ratio * _measure_deviation_from(residuals, flat):
        return rising
    return flat


def _fit_two_levels(residuals: Floats, is_inside: Flags, shortest: int | None = None) -> Course:
    """Fit two levels to residuals, [row]: rows closer to the upper one form the runs.

    It begins with the rows that are flagged. Runs are `shortest` rows or longer; None = one run.
    """
    clip_distance = DEVIATIONS_BEYOND_LEVEL_TO_CLIP * measure_step_deviation(residuals)
    for _ in range(ROUNDS_OF_TWO_LEVELS):
        lower, upper = _measure_levels(residuals, is_inside)
        rise = upper - lower
        gains = (
            np.clip(residuals, lower - clip_distance, upper + clip_distance) - (lower + upper) / 2
        )
        if shortest is None:
            runs: tuple[tuple[int, int], ...] = (find_greatest_run(gains),)
        else:
            edge_price = max(_price_of_edge(residuals, is_inside), shortest * rise / 4)
            runs = find_runs(find_best_runs(gains, edge_price)) or (find_greatest_run(gains),)
        is_inside = mark_runs(runs, len(residuals))
    if shortest is None and rise > 0:
        runs = (_extend_to_ends(gains, *runs[0], _price_of_edge(residuals, is_inside)),)
        is_inside = mark_runs(runs, len(residuals))
    lower, upper = _measure_levels(residuals, is_inside)
    rise = upper - lower
    effect = np.where(is_inside, rise, 0.0)
    residual_squares = float(((residuals - effect - lower) ** 2).sum())
    edge_cost = _count_edges(runs, len(gains)) * _price_of_edge(residuals, is_inside) * 2 * rise
    return Course(runs, effect, _name_pattern(runs, is_inside), residual_squares + edge_cost)


def _price_of_edge(residuals: Floats, is_inside: Flags) -> float:
    """Return the gain in log-likelihood that an edge must be worth."""
    lower, upper = _measure_levels(residuals, is_inside)
    if upper <= lower:
        return 0.0
    noise = _long_run_variance(residuals - np.where(is_inside, upper, lower))
    return float(noise / (upper - lower) * np.log(len(residuals)))


def _count_edges(runs: tuple[tuple[int, int], ...], count: int) -> int:
    """Count how many edges runs have within the series."""
    return 2 * len(runs) - (runs[0][0] == 0) - (runs[-1][1] == count - 1)


def _measure_levels(residuals: Floats, is_inside: Flags) -> tuple[float, float]:
    """Return the lower and the upper level of residuals, [row], outside and inside of runs (flags)."""
    upper = float(np.median(residuals[is_inside]))
    outside = residuals[~is_inside]
    lower = float(np.median(outside)) if len(outside) >= MIN_STEPS_OF_LOWER_LEVEL else 0.0
    may_be_negative = len(outside) >= MIN_SHARE_OF_STEPS_FOR_NEGATIVE_LEVEL * len(residuals)
    lower_limit = -upper / 2 if may_be_negative else 0.0
    return min(max(lower, lower_limit), upper / 2), upper


def _name_pattern(runs: tuple[tuple[int, int], ...], is_inside: Flags) -> Pattern:
    if len(runs) > 1:
        return "intermittent"
    return "persistent" if np.mean(is_inside) >= MIN_SHARE_OF_STEPS_IF_PERSISTENT else "transient"


def _extend_to_ends(gains: Floats, first_row: int, last_row: int, price: float) -> tuple[int, int]:
    """Extend a run to the begin, or to the end, unless the steps beyond are worth an edge."""
    if gains[:first_row].sum() > -price:
        first_row = 0
    if gains[last_row + 1 :].sum() > -price:
        last_row = len(gains) - 1
    return first_row, last_row


def _long_run_variance(noise: Floats) -> float:
    """Return the long-run variance of a row: that of blocks, for neighbours are alike."""
    blocks = block_medians(noise[:, None], block_edges(len(noise)))[:, 0]
    lasting = measure_deviation(blocks - np.median(blocks))
    return max(lasting**2 * len(noise) / len(blocks), measure_step_deviation(noise) ** 2)


def find_greatest_run(gains: Floats) -> tuple[int, int]:
    """Return the run of rows with the greatest sum (Kadane)."""
    sums = np.concatenate([[0.0], np.cumsum(gains)])
    lowest = np.minimum.accumulate(sums)
    last_row = int(np.argmax(sums[1:] - lowest[:-1]))
    return int(np.argmin(sums[: last_row + 1])), last_row


def find_best_runs(gains: Floats, price: float) -> Flags:
    """Find which rows are in the runs whose gains sum to most, less `price` for each edge.

    The begin and the end of the series are no edges. Of each column for itself, [row] or [row, column]
    (Viterbi 1967, of two states).
    """
    if gains.ndim == 1:
        return _find_best_runs_of_one(gains.tolist(), price)
    # The best sum if a row is at the lower, or the upper level, [column]; and where it came from then.
    lower_score, upper_score = np.zeros((2, gains.shape[1]))
    follows_upper, was_upper = np.zeros((2, *gains.shape), np.bool_)
    for row, gain in enumerate(gains):
        edge_price = price if row else 0.0
        follows_upper[row], was_upper[row] = (
            upper_score - edge_price > lower_score,
            upper_score >= lower_score - edge_price,
        )
        lower_score, upper_score = (
            np.maximum(lower_score, upper_score - edge_price),
            np.maximum(upper_score, lower_score - edge_price) + gain,
        )
    is_inside = np.zeros(gains.shape, np.bool_)
    is_upper = upper_score > lower_score
    for row in range(len(gains) - 1, -1, -1):
        is_inside[row] = is_upper
        is_upper = np.where(is_upper, was_upper[row], follows_upper[row])
    return is_inside


def _find_best_runs_of_one(gains: list[float], price: float) -> Flags:
    """Flag the rows of the runs whose gains sum to most, less `price` for each edge; gains are [row].

    Of one series, as `find_best_runs` of several: numbers of Python are quicker one by one.
    """
    # The best sum if a row is at the lower, or the upper level; and whether the row before was upper.
    lower_score = upper_score = edge_price = 0.0
    origins: list[tuple[bool, bool]] = []
    for gain in gains:
        follows_upper, was_upper = (
            upper_score - edge_price > lower_score,
            upper_score >= lower_score - edge_price,
        )
        origins.append((follows_upper, was_upper))
        lower_score, upper_score = (
            upper_score - edge_price if follows_upper else lower_score,
            (upper_score if was_upper else lower_score - edge_price) + gain,
        )
        edge_price = price
    is_inside = np.zeros(len(gains), np.bool_)
    is_upper = upper_score > lower_score
    for row in range(len(gains) - 1, -1, -1):
        is_inside[row] = is_upper
        is_upper = origins[row][is_upper]
    return is_inside


def find_runs(is_inside: Flags) -> tuple[tuple[int, int], ...]:
    """Return the first and the last row of each run."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_inside, [False]]).astype(np.int8)))
    return tuple(zip(edges[::2].tolist(), (edges[1::2] - 1).tolist(), strict=True))


def _fit_rise(residuals: Floats, last_row: int) -> Course | None:
    """Fit a line to residuals, [row], that rises from 0 to `last_row`, from any begin; else None."""
    edges = block_edges(len(residuals))
    blocks = block_medians(residuals[:, None], edges)[:, 0]
    middle_rows = (edges[:-1] + edges[1:] - 1) / 2
    best_begin, best_slope, least_deviation = 0, 0.0, np.inf
    for begin_row in edges[:-1].tolist():
        ramp = np.where(middle_rows <= last_row, np.maximum(middle_rows - begin_row, 0.0), 0.0)
        if np.count_nonzero(ramp) < MIN_BLOCKS_OF_RISE:
            break
        slope = float(ramp @ blocks / (ramp @ ramp))
        deviation = float(np.abs(blocks - slope * ramp).sum())
        if slope > 0 and deviation < least_deviation:
            best_begin, best_slope, least_deviation = begin_row, slope, deviation
    if not best_slope:
        return None
    rows = np.arange(len(residuals))
    effect = best_slope * np.where(rows <= last_row, np.maximum(rows - best_begin, 0), 0)
    cost = float(((residuals - effect) ** 2).sum())
    return Course(((best_begin, last_row),), effect, "drifting", cost)


def _measure_deviation_from(residuals: Floats, fitted: Course) -> float:
    edges = block_edges(len(residuals))
    return float(np.abs(block_medians((residuals - fitted.delays)[:, None], edges)).sum())
