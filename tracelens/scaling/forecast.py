"""How long steps will take on more ranks: the slowest rank's work and the rest, forecast each by itself.

Work of N ranks whose times vary independently ends with the slowest of them, after mean x
exp(sigma E[max z_N]), z normal (Blom 1958, "Statistical estimates and transformed beta-variables"). What
a step takes beyond that, mostly communication, grows as its algorithm does: not at all, as (N - 1) / N
(a ring's bytes), as log2 N (a tree), or as N (one server, or a ring's messages); a constant is taken
off where it goes on beside computation. Sums of these are fitted by non-negative least squares, and
count as much as they would have foretold the sizes that are known from the smaller ones. One curve for
the whole step foretells worse, and its resampled interval misses the truth (docs/scaling.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.arrays import Floats

__all__ = ["FEWEST_SIZES", "LARGEST_FACTOR", "Forecast", "Sizes", "forecast"]

FEWEST_SIZES: Final = 4  # fewer fit any curve
LARGEST_FACTOR: Final = 4  # beyond so many times the largest size, nothing was validated
_LEAST_ERROR: Final = 0.01  # of a step: what no forecast is better than
_FIRST_FITTED: Final = 3  # sizes that the first forecast of a known size has
_WIDTH: Final = 1.96  # deviations of a 95 % interval
_GROWTH: Final[dict[str, Callable[[Floats], Floats]]] = {
    "constant": np.ones_like,
    "ring": lambda sizes: (sizes - 1) / sizes,
    "logarithmic": np.log2,
    "linear": lambda sizes: sizes,
}


@dataclass(frozen=True, eq=False)
class Sizes:
    """What was measured at each number of ranks, ascending; times are a step's, nanoseconds.

    `work` is the mean over the ranks, `slowest` that of each step's slowest rank, `step` all of it.
    """

    ranks: Floats
    work: Floats
    slowest: Floats
    step: Floats

    def first(self, count: int) -> Sizes:
        """Return the smallest so many."""
        return Sizes(*(one[:count] for one in (self.ranks, self.work, self.slowest, self.step)))


@dataclass(frozen=True)
class Forecast:
    """A step on so many `ranks`, ns, with its 95 % interval; `slowest_ns` of it is work."""

    ranks: int
    step_ns: float
    interval: tuple[float, float]
    slowest_ns: float
    validated: bool


def forecast(known: Sizes, ranks: int, *, strong: bool) -> Forecast | None:
    """Forecast a step; None where fewer than `FEWEST_SIZES` sizes are known.

    Args:
        known: What was measured.
        ranks: At what size.
        strong: All ranks share the same work, of which each has less the more they are.
    """
    if len(known.ranks) < FEWEST_SIZES:
        return None
    at = np.array([float(ranks)])
    slowest = float(_slowest(known, at, strong=strong)[0])
    rests, weights = _rests(known, at, strong=strong)
    rest = float(weights @ rests)
    error = float(np.sqrt(weights @ (rests - rest) ** 2 + (_LEAST_ERROR * (slowest + rest)) ** 2))
    step = slowest + rest
    return Forecast(
        ranks,
        step,
        (max(step - _WIDTH * error, slowest), step + _WIDTH * error),
        slowest,
        validated=ranks <= LARGEST_FACTOR * known.ranks[-1],
    )


def expected_largest(counts: Floats) -> Floats:
    """Return the mean of the largest of so many standard normal numbers."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse((n - 0.375) / (n + 0.25)) for n in counts.tolist()])


def _slowest(known: Sizes, at: Floats, *, strong: bool) -> Floats:
    """Return the work of the slowest rank."""
    of_size = _shares(known.ranks, strong=strong)
    shares = _fitted(of_size / known.work[:, None], np.ones(len(known.work)))
    work = _shares(at, strong=strong) @ shares
    deviations = np.log(np.maximum(known.slowest / known.work, 1.0))
    expected = expected_largest(known.ranks)
    squares = float(np.square(expected).sum())  # not 0: sizes differ
    sigma = max(float(deviations @ expected) / squares, 0.0)
    return np.asarray(work * np.exp(sigma * expected_largest(at)))


def _shares(sizes: Floats, *, strong: bool) -> Floats:
    """Return what a rank's work is made of, [size, part]: what each does, and its share of the rest."""
    each = np.ones_like(sizes)
    return np.stack([each, 1 / sizes], axis=1) if strong else each[:, None]


def _rests(known: Sizes, at: Floats, *, strong: bool) -> tuple[Floats, Floats]:
    """Return what each sum of growths says of the time beyond work, and its weight."""
    sums = [
        names for count in (1, 2) for names in combinations(_GROWTH, count) if _is_distinct(names)
    ]
    foretold, weights = [], []
    for names in sums:
        errors = [
            (_whole(known.first(count), known.ranks[count : count + 1], names, strong=strong))[0]
            / known.step[count]
            - 1
            for count in range(_FIRST_FITTED, len(known.ranks))
        ]
        foretold.append(_rest(known, at, names)[0])
        weights.append(1 / (np.mean(np.square(errors)) + _LEAST_ERROR**2) ** 2)
    return np.array(foretold), np.array(weights) / np.sum(weights)


def _is_distinct(names: tuple[str, ...]) -> bool:
    """Return whether a few sizes can tell the parts from each other: a ring's is nearly constant."""
    return names != ("constant", "ring")


def _whole(known: Sizes, at: Floats, names: tuple[str, ...], *, strong: bool) -> Floats:
    return _slowest(known, at, strong=strong) + _rest(known, at, names)


def _rest(known: Sizes, at: Floats, names: tuple[str, ...]) -> Floats:
    beyond = (known.step - known.slowest) / known.step
    parts = _fitted(_grown(known.ranks, names) / known.step[:, None], beyond)
    return np.asarray(np.maximum(_grown(at, names) @ parts, 0.0))


def _grown(sizes: Floats, names: tuple[str, ...]) -> Floats:
    """Return how parts grow, [size, part]; a constant is added or taken off."""
    columns = [_GROWTH[name](sizes) for name in names]
    hidden = [-column for name, column in zip(names, columns, strict=True) if name == "constant"]
    return np.stack([*columns, *hidden], axis=1)


def _fitted(columns: Floats, values: Floats) -> Floats:
    """Fit a sum of columns without a negative part (Lawson & Hanson 1974)."""
    from scipy.optimize import nnls  # noqa: PLC0415 - a forecast is seldom asked for

    return np.asarray(nnls(columns, values)[0])
