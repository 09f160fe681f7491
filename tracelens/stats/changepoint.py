"""Change points of a series: where a delay begins and ends, and what course it takes in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.stats.robust import block_edges, block_medians, deviation, deviation_of_steps

if TYPE_CHECKING:
    from tracelens.arrays import Floats
    from tracelens.model.findings import Pattern

PERSISTENT: Final = 0.6  # of the run
_ROUNDS: Final = 4
_FEW: Final = 8  # steps: too few to say what is normal outside
_ENOUGH: Final = 0.25  # of the run: so many say that a rank is normally faster than others
_TAIL: Final = 0.5  # deviations beyond a level: more tells nothing more about where it begins
_BETTER: Final = 0.9


@dataclass(frozen=True)
class Course:
    """Rows `first` to `last`, inclusive; `effect` is the delay of every row, 0 outside."""

    first: int
    last: int
    effect: Floats
    pattern: Pattern

    @property
    def level(self) -> float:
        """Mean delay inside."""
        return float(self.effect[self.first : self.last + 1].mean())


def course(residuals: Floats, first: int, last: int, better: float = _BETTER) -> Course:
    """Follow one rank's excess from a window found in it to its edges and shape.

    It rises if a line leaves less than `better` times the misfit of two levels.
    """
    flat = _flat(residuals, first, last)
    rising = _rising(residuals, flat.last)
    if rising is not None and _deviation(residuals, rising) < better * _deviation(residuals, flat):
        return rising
    return flat


def _flat(residuals: Floats, first: int, last: int) -> Course:
    """Fit two levels: rows closer to the upper one form the interval (maximum-sum run of rows)."""
    level, tail = 0.0, _TAIL * deviation_of_steps(residuals)
    for _ in range(_ROUNDS):
        inside = np.zeros(len(residuals), np.bool_)
        inside[first : last + 1] = True
        upper = float(np.median(residuals[inside]))
        rest = residuals[~inside]
        lower = float(np.median(rest)) if len(rest) >= _FEW else 0.0
        least = -upper / 2 if len(rest) >= _ENOUGH * len(residuals) else 0.0
        lower = min(max(lower, least), upper / 2)
        level = upper - lower
        gains = np.clip(residuals, lower - tail, upper + tail) - (lower + upper) / 2
        first, last = greatest_run(gains)
    if level > 0:
        rows = np.arange(len(residuals))
        fitted = np.where((rows >= first) & (rows <= last), upper, lower)
        first, last = _to_the_ends(gains, first, last, _variance(residuals - fitted) / level)
    effect = np.zeros(len(residuals))
    effect[first : last + 1] = level
    lasting = (last - first + 1) >= PERSISTENT * len(residuals)
    return Course(first, last, effect, "persistent" if lasting else "transient")


def _to_the_ends(gains: Floats, first: int, last: int, worth: float) -> tuple[int, int]:
    """Extend an episode to the run's begin, or to its end, unless the steps clearly speak against it.

    An edge is one parameter more, which the steps beyond it must be worth (Schwarz 1978); the logarithm
    of how much likelier a row is within is `gains / worth`.
    """
    price = worth * np.log(len(gains))
    if gains[:first].sum() > -price:
        first = 0
    if gains[last + 1 :].sum() > -price:
        last = len(gains) - 1
    return first, last


def _variance(noise: Floats) -> float:
    """Return the long-run variance of a row: that of blocks, for neighbours are alike."""
    blocks = block_medians(noise[:, None], block_edges(len(noise)))[:, 0]
    lasting = deviation(blocks - np.median(blocks))
    return max(lasting**2 * len(noise) / len(blocks), deviation_of_steps(noise) ** 2)


def greatest_run(gains: Floats) -> tuple[int, int]:
    """Return the run of rows with the greatest sum (Kadane)."""
    sums = np.concatenate([[0.0], np.cumsum(gains)])
    lowest = np.minimum.accumulate(sums)
    last = int(np.argmax(sums[1:] - lowest[:-1]))
    return int(np.argmin(sums[: last + 1])), last


def _rising(residuals: Floats, last: int) -> Course | None:
    """Fit a line that rises from 0 to row `last`, over all rows where it may begin."""
    edges = block_edges(len(residuals))
    blocks = block_medians(residuals[:, None], edges)[:, 0]
    middles = (edges[:-1] + edges[1:] - 1) / 2
    best, lowest = None, np.inf
    for begin in edges[:-1]:
        line = np.where(middles <= last, np.maximum(middles - begin, 0.0), 0.0)
        if np.count_nonzero(line) < 3:
            break
        slope = float(line @ blocks / (line @ line))
        deviation = float(np.abs(blocks - slope * line).sum())
        if slope > 0 and deviation < lowest:
            best, lowest = (int(begin), slope), deviation
    if best is None:
        return None
    rows = np.arange(len(residuals))
    line = np.where(rows <= last, np.maximum(rows - best[0], 0), 0)
    return Course(best[0], last, best[1] * line, "drifting")


def _deviation(residuals: Floats, fitted: Course) -> float:
    edges = block_edges(len(residuals))
    return float(np.abs(block_medians((residuals - fitted.effect)[:, None], edges)).sum())
