"""Tails of Student's t, of the binomial distribution, and of rank sums, however small they are.

The first two are regularised incomplete beta functions (Abramowitz & Stegun 26.5.24 and 26.7.1), the
latter also between whole numbers. SciPy has these; importing it takes as long as explaining a small run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens.arrays import Floats, Ints

_log_gamma: Final = np.frompyfunc(math.lgamma, 1, 1)
_ROUNDING: Final = 16 * np.finfo(float).eps
_complementary_error: Final = np.frompyfunc(math.erfc, 1, 1)


def student_tail(t: npt.ArrayLike, freedom: npt.ArrayLike) -> Floats:
    """Return P(T >= t) for Student's t with `freedom` degrees of freedom, infinite ones included."""
    t, freedom = np.asarray(t, float), np.asarray(freedom, float)
    normal = np.isinf(freedom)
    finite = np.where(normal, 1.0, freedom)
    with np.errstate(divide="ignore"):  # at 0
        shares = 1 / (1 + t**2 / finite), 1 / (1 + finite / t**2)
    two_sided = _incomplete_beta(finite / 2, np.asarray(0.5), *shares)
    of_normal = np.asarray(_complementary_error(np.abs(t) / math.sqrt(2)), float)
    two_sided = np.where(normal, of_normal, two_sided)
    return np.asarray(np.where(t < 0, 1 - two_sided / 2, two_sided / 2))


def binomial_tail(k: npt.ArrayLike, trials: npt.ArrayLike, rate: npt.ArrayLike) -> Floats:
    """Return P(X >= k) for a binomial X, of counts that need not be whole."""
    k, trials, rate = (np.asarray(values, float) for values in (k, trials, rate))
    is_inside = (k >= 1) & (k <= trials)
    bounded_k = np.where(is_inside, k, 1)
    tail = _incomplete_beta(bounded_k, np.maximum(trials - bounded_k + 1, 1), rate, 1 - rate)
    return np.asarray(np.where(is_inside, tail, np.where(k < 1, 1.0, 0.0)))


def rank_sum_tail(values: Ints, others: Ints) -> float:
    """Measure how likely some values are so large among others by chance (Mann & Whitney 1947).

    The normal approximation, without a correction for ties.
    """
    ordered = np.sort(others)
    smaller_count, smaller_or_equal_count = (
        np.searchsorted(ordered, values, side=side) for side in ("left", "right")
    )
    greater = float((smaller_count + smaller_or_equal_count).sum()) / 2
    pairs = len(values) * len(others)
    deviation = math.sqrt(pairs * (len(values) + len(others) + 1) / 12)
    return math.erfc((greater - pairs / 2) / deviation / math.sqrt(2)) / 2


def _incomplete_beta(a: Floats, b: Floats, x: Floats, complement: Floats) -> Floats:
    """Return the regularised I_x(a, b); `complement` is 1 - x, which is exact where x is near 1.

    Where the continued fraction would converge slowly, it is that of I_rest(b, a) (DLMF 8.17.4).
    """
    logs = _log_gamma(a + b) - _log_gamma(a) - _log_gamma(b)
    with np.errstate(divide="ignore"):  # at an end of the range the factor is exp(-inf)
        factor = np.exp(np.asarray(logs, float) + a * np.log(x) + b * np.log(complement))
    is_swapped = x > (a + 1) / (a + b + 2)
    first, second, share = (
        np.where(is_swapped, b, a),
        np.where(is_swapped, a, b),
        np.where(is_swapped, complement, x),
    )
    tail = factor / first * _continued_fraction(first, second, share)
    return np.asarray(np.where(is_swapped, 1 - tail, tail))


def _continued_fraction(a: Floats, b: Floats, x: Floats) -> Floats:
    """Return the fraction of DLMF 8.17.22, until only rounding changes its value (Lentz 1976)."""
    ratio = np.ones_like(x)
    inverse = 1 / (1 - (a + b) * x / (a + 1))
    value, m = inverse.copy(), 0
    while True:
        m += 1
        previous, twice = value.copy(), a + 2 * m
        for part in (
            m * (b - m) * x / ((twice - 1) * twice),
            -(a + m) * (a + b + m) * x / (twice * (twice + 1)),
        ):
            inverse = 1 / (1 + part * inverse)
            ratio = 1 + part / ratio
            value *= ratio * inverse
        if not (np.abs(value - previous) > _ROUNDING * np.maximum(inverse, 1) * value).any():
            return value
