"""Tails of Student's t and of the binomial distribution, without scipy.

Both are regularised incomplete beta functions (Abramowitz & Stegun 26.5.24 and 26.7.1), computed by
the continued fraction 26.5.8 with Lentz' method, on whole arrays.
"""

from __future__ import annotations

from math import lgamma
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_TINY: Final = 1e-300
_PRECISION: Final = 1e-14
_MOST_TERMS: Final = 400
_lgamma = np.vectorize(lgamma, otypes=[np.float64])


def incomplete_beta(a: npt.ArrayLike, b: npt.ArrayLike, x: npt.ArrayLike) -> Floats:
    """Return I_x(a, b) for positive `a`, `b` and `x` within [0, 1]; arguments broadcast."""
    a, b, x = np.broadcast_arrays(np.asarray(a, float), np.asarray(b, float), np.asarray(x, float))
    swapped = x > (a + 1) / (a + b + 2)  # the fraction converges quickly on one side of the mean
    p, q, z = np.where(swapped, b, a), np.where(swapped, a, b), np.where(swapped, 1 - x, x)
    with np.errstate(divide="ignore"):
        power = _lgamma(p + q) - _lgamma(p) - _lgamma(q) + p * np.log(z) + q * np.log1p(-z)
    tail = np.exp(power) / p * _fraction(p, q, z)
    return np.asarray(np.where(swapped, 1 - tail, tail))


def _fraction(a: Floats, b: Floats, x: Floats) -> Floats:
    c, d = np.ones_like(x), 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for term in range(1, _MOST_TERMS):
        even = term * (b - term) * x / ((a + 2 * term - 1) * (a + 2 * term))
        odd = -(a + term) * (a + b + term) * x / ((a + 2 * term) * (a + 2 * term + 1))
        for factor in (even, odd):
            d = 1 / _away_from_zero(1 + factor * d)
            c = _away_from_zero(1 + factor / c)
            value = value * c * d
        if np.all(np.abs(c * d - 1) < _PRECISION):
            break
    return value


def _away_from_zero(values: Floats) -> Floats:
    return np.asarray(np.where(np.abs(values) < _TINY, _TINY, values))


def student_tail(t: npt.ArrayLike, freedom: npt.ArrayLike) -> Floats:
    """Return P(T >= t) for Student's t with `freedom` degrees of freedom."""
    t, freedom = np.asarray(t, float), np.asarray(freedom, float)
    half = 0.5 * incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))
    return np.asarray(np.where(t >= 0, half, 1 - half))


def binomial_tail(k: npt.ArrayLike, trials: npt.ArrayLike, rate: npt.ArrayLike) -> Floats:
    """Return P(X >= k) for a binomial X."""
    k, trials, rate = np.broadcast_arrays(*(np.asarray(v, float) for v in (k, trials, rate)))
    inside = (k >= 1) & (k <= trials)
    shown = np.where(inside, k, 1)
    tail = incomplete_beta(shown, np.maximum(trials - shown + 1, 1), rate)
    return np.asarray(np.where(inside, tail, np.where(k < 1, 1.0, 0.0)))
