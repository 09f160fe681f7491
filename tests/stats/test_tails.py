"""Tails of distributions are right however small they are, for they pay for thousands of windows."""

from fractions import Fraction
from itertools import accumulate
from math import comb

import numpy as np
import pytest
from scipy import special

from tracelens.stats.tails import binomial_tail, student_tail

T = np.linspace(0, 1000, 161)


def test_student_tail_of_one_degree() -> None:
    """That of Cauchy's distribution, on both sides."""
    expected = np.arctan2(1, T) / np.pi
    assert student_tail(T, 1) == pytest.approx(expected, rel=1e-12)
    assert student_tail(-T, 1) == pytest.approx(1 - expected, rel=1e-12)


def test_student_tail_of_two_degrees() -> None:
    """Which has a closed form as well."""
    root = np.sqrt(2 + T**2)
    assert student_tail(T, 2) == pytest.approx(1 / (root * (root + T)), rel=1e-12)


@pytest.mark.parametrize("freedom", [0.5, 2.1, 60.0, 1e5, 1e6, np.inf])
def test_student_tail_is_that_of_scipy(freedom: float) -> None:
    """Also for degrees of freedom at which rounding matters, and for infinitely many."""
    t = np.append(np.linspace(-40, 40, 1601), 1e-9)
    expected = special.stdtr(freedom, -t)
    assert student_tail(t, freedom) == pytest.approx(expected, rel=1e-8, abs=1e-300)
    assert student_tail([np.inf, -np.inf], freedom).tolist() == [0.0, 1.0]


def test_student_tail_far_out() -> None:
    """Where 1 minus the distribution function would be 0; degrees of freedom need not be whole."""
    far = student_tail(np.array([[40.0], [300.0]]), np.array([60.0, 63.5]))
    assert (far > 0).all()
    assert (far[:, 1] < far[:, 0]).all()
    assert student_tail(300.0, 60.0) == pytest.approx(2.62267359386253e-97, rel=1e-12)


@pytest.mark.parametrize(("trials", "rate"), [(40, 0.01), (300, 0.002), (300, 0.3), (7, 0.5)])
def test_the_binomial_tail_is_exact(trials: int, rate: float) -> None:
    """P(X >= k) for every k, as sums of fractions give it, with the trivial ends."""
    p = Fraction(rate)
    of_count = [comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(trials + 1)]
    sums = [*accumulate(reversed(of_count))][::-1]
    expected = [float(tail) for tail in (*sums, Fraction(0))]
    found = binomial_tail(np.arange(trials + 2), trials, rate)
    assert found == pytest.approx(expected, rel=1e-11, abs=1e-300)


def test_binomial_tail_of_many_trials() -> None:
    k = np.linspace(1, 1e6, 501)
    expected = special.betainc(k, 1e6 - k + 1, 0.3)
    assert binomial_tail(k, 1e6, 0.3) == pytest.approx(expected, rel=1e-8, abs=1e-300)


def test_binomial_tail_of_counts_that_are_not_whole() -> None:
    """It falls from each whole count to the next; less than one is always reached."""
    found = binomial_tail(np.linspace(1, 13.3, 124), 13.3, 0.2)
    assert (np.diff(found) < 0).all()
    assert binomial_tail([0.3, 13.4], 13.3, 0.2).tolist() == [1.0, 0.0]
