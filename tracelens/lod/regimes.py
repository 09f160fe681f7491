"""Regimes of a run: from which step on do steps take another time, and how long does that last?

The series is cut where that makes it much better described by the levels of its parts (optimal
partitioning: Jackson et al. 2005, "An algorithm for optimal partitioning of data on an interval"), and a
cut is kept only if the two sides are apart for nearly every step, as noise that wanders is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.stats.robust import measure_step_deviation

if TYPE_CHECKING:
    from tracelens.arrays import Floats

BLOCKS: Final = 400  # longer runs are looked at in so many blocks of steps
SHORTEST: Final = 6  # blocks: less is a spike
OF_ALL: Final = (
    25  # and at least this part of all of them: of many, some stray by chance for longer
)
LEAST: Final = 0.06  # relative difference of levels
APART: Final = 0.8  # of the steps of each side are on its side of the middle
PENALTY: Final = 6.0  # times the noise's variance times log(blocks): noise of steps is correlated
_SPIKE: Final = 3.0  # deviations: what is further from its neighbours' median counts no more


@dataclass(frozen=True)
class Regime:
    """Indices `first_index` to `last_index` of a series, inclusive, and the median of their values."""

    first_index: int
    last_index: int
    median: float


def find_regimes(values: Floats) -> list[Regime]:
    """Divide a series of times, ns, [step], where its level changes for long.

    Values that are no time, or not above 0, belong to no regime.
    """
    positive_indices = np.flatnonzero(np.isfinite(values) & (values > 0))
    if not len(positive_indices):
        return []
    series = np.asarray(values[positive_indices], float)
    edges = np.linspace(0, len(series), min(len(series), BLOCKS) + 1).astype(int)
    block_medians = np.array([np.median(series[begin:end]) for begin, end in pairwise(edges)])
    cut_indices = _drop_weak_cuts(
        series, [int(edges[cut]) for cut in _find_cuts(_without_spikes(np.log(block_medians)))]
    )
    return [
        Regime(
            int(positive_indices[begin]),
            int(positive_indices[end - 1]),
            float(np.median(series[begin:end])),
        )
        for begin, end in pairwise(cut_indices)
    ]


def _without_spikes(series: Floats) -> Floats:
    """Replace spikes by the median of their neighbourhood."""
    padded = np.pad(series, 4, mode="reflect" if len(series) > 4 else "edge")
    medians = np.median(np.lib.stride_tricks.sliding_window_view(padded, 9), axis=1)
    max_deviation = _SPIKE * max(measure_step_deviation(series), 1e-12)
    return np.asarray(np.clip(series, medians - max_deviation, medians + max_deviation))


def _find_cuts(series: Floats) -> list[int]:
    """Return the indices where parts begin, and the end: least squares, with a cost for each part.

    `series`, [block of steps], are logarithms of times: differences are relative ones.
    """
    count = len(series)
    prefix_sums, prefix_squares = (
        np.concatenate([[0.0], np.cumsum(values)]) for values in (series, series**2)
    )
    cut_cost = (
        PENALTY * max(measure_step_deviation(series), LEAST / 10) ** 2 * np.log(max(count, 2))
    )
    min_length = max(SHORTEST, count // OF_ALL)
    best_costs, best_begins = np.full(count + 1, np.inf), np.zeros(count + 1, np.int64)
    best_costs[0] = 0.0
    for end in range(1, count + 1):
        begins = np.arange(max(end - min_length + 1, 1))
        deviation = (
            prefix_squares[end]
            - prefix_squares[begins]
            - (prefix_sums[end] - prefix_sums[begins]) ** 2 / (end - begins)
        )
        costs = best_costs[begins] + deviation + cut_cost
        best_begins[end] = int(costs.argmin())
        best_costs[end] = costs[best_begins[end]]
    cuts = [count]
    while cuts[-1]:
        cuts.append(int(best_begins[cuts[-1]]))
    return cuts[::-1]


def _drop_weak_cuts(series: Floats, cuts: list[int]) -> list[int]:
    """Remove the weakest cut until the sides of all are clearly apart.

    Cuts are indices of `series`, times in ns, [step], with its begin and its end.
    """
    while len(cuts) > 2:
        inner_cuts = range(1, len(cuts) - 1)
        separations = [
            _measure_separation(
                series[cuts[cut - 1] : cuts[cut]], series[cuts[cut] : cuts[cut + 1]]
            )
            for cut in inner_cuts
        ]
        weakest = int(np.argmin(separations))
        if separations[weakest] >= 1:
            break
        del cuts[weakest + 1]
    return cuts


def _measure_separation(before: Floats, after: Floats) -> float:
    """Return the separation of the times, ns, of two sides relative to the required one: 1 is enough.

    `before` and `after` are the times of steps on both sides, [step].
    """
    level_before, level_after = float(np.median(before)), float(np.median(after))
    middle = (level_before + level_after) / 2
    upper, lower = (before, after) if level_before > level_after else (after, before)
    share_apart = min(float(np.mean(upper > middle)), float(np.mean(lower < middle)))
    difference = abs(level_after - level_before) / max(min(level_before, level_after), 1e-12)
    return min(difference / LEAST, share_apart / APART)
