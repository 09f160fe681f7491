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
    """Return P(T >= t) for Student's t with `freedom` degrees of freedom, infinite ones included.

    Both are numbers, or arrays of one shape, as is the result.
    """
    t, freedom = np.asarray(t, float), np.asarray(freedom, float)
    is_normal = np.isinf(freedom)
    finite_freedom = np.where(is_normal, 1.0, freedom)
    with np.errstate(divide="ignore"):  # at 0
        shares = 1 / (1 + t**2 / finite_freedom), 1 / (1 + finite_freedom / t**2)
    two_sided = _incomplete_beta(finite_freedom / 2, np.asarray(0.5), *shares)
    normal_two_sided = np.asarray(_complementary_error(np.abs(t) / math.sqrt(2)), float)
    two_sided = np.where(is_normal, normal_two_sided, two_sided)
    return np.asarray(np.where(t < 0, 1 - two_sided / 2, two_sided / 2))


def binomial_tail(k: npt.ArrayLike, trials: npt.ArrayLike, rate: npt.ArrayLike) -> Floats:
    """Return P(X >= k) for a binomial X of `trials` with a success `rate`; counts need not be whole."""
    k, trials, rate = (np.asarray(values, float) for values in (k, trials, rate))
    is_inside = (k >= 1) & (k <= trials)
    bounded_k = np.where(is_inside, k, 1)
    tail = _incomplete_beta(bounded_k, np.maximum(trials - bounded_k + 1, 1), rate, 1 - rate)
    return np.asarray(np.where(is_inside, tail, np.where(k < 1, 1.0, 0.0)))


def rank_sum_tail(values: Ints, other_values: Ints) -> float:
    """Return the probability of such large values among others by chance (Mann & Whitney 1947).

    The normal approximation, without a correction for ties.
    """
    ordered = np.sort(other_values)
    smaller_count, smaller_or_equal_count = (
        np.searchsorted(ordered, values, side=side) for side in ("left", "right")
    )
    greater_pairs = float((smaller_count + smaller_or_equal_count).sum()) / 2
    pair_count = len(values) * len(other_values)
    deviation = math.sqrt(pair_count * (len(values) + len(other_values) + 1) / 12)
    return math.erfc((greater_pairs - pair_count / 2) / deviation / math.sqrt(2)) / 2


def _incomplete_beta(a: Floats, b: Floats, x: Floats, complement: Floats) -> Floats:
    """Return the regularised I_x(a, b) by element; `complement` is 1 - x, exact where x is near 1.

    Where the continued fraction would converge slowly, it is that of I_rest(b, a) (DLMF 8.17.4).
    """
    logs = _log_gamma(a + b) - _log_gamma(a) - _log_gamma(b)
    with np.errstate(divide="ignore"):  # at an end of the range the factor is exp(-inf)
        prefactor = np.exp(np.asarray(logs, float) + a * np.log(x) + b * np.log(complement))
    is_swapped = x > (a + 1) / (a + b + 2)
    used_a, used_b = np.where(is_swapped, b, a), np.where(is_swapped, a, b)
    used_x = np.where(is_swapped, complement, x)
    tail = prefactor / used_a * _continued_fraction(used_a, used_b, used_x)
    return np.asarray(np.where(is_swapped, 1 - tail, tail))


def _continued_fraction(a: Floats, b: Floats, x: Floats) -> Floats:
    """Return the fraction of DLMF 8.17.22, until only rounding changes its value (Lentz 1976)."""
    numerator_ratio = np.ones_like(x)
    inverse_denominator_ratio = 1 / (1 - (a + b) * x / (a + 1))
    value, m = inverse_denominator_ratio.copy(), 0
    while True:
        m += 1
        previous_value, a_2m = value.copy(), a + 2 * m
        for coefficient in (
            m * (b - m) * x / ((a_2m - 1) * a_2m),
            -(a + m) * (a + b + m) * x / (a_2m * (a_2m + 1)),
        ):
            inverse_denominator_ratio = 1 / (1 + coefficient * inverse_denominator_ratio)
            numerator_ratio = 1 + coefficient / numerator_ratio
            value *= numerator_ratio * inverse_denominator_ratio
        rounding = _ROUNDING * np.maximum(inverse_denominator_ratio, 1) * value
        if not (np.abs(value - previous_value) > rounding).any():
            return value
