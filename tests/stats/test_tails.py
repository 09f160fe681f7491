"""The tails written here agree with scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from tracelens.stats.null_model import binomial_tail, incomplete_beta, student_tail


@pytest.mark.parametrize("freedom", [0.7, 1.0, 3.5, 8.0, 9.8, 68.0])
def test_student_tail(freedom: float) -> None:
    """P(T >= t) to nine digits, far into both tails."""
    t = np.linspace(-40, 40, 161)
    assert student_tail(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize(("trials", "rate"), [(40, 0.01), (1000, 0.002), (1000, 0.3), (7, 0.5)])
def test_binomial_tail(trials: int, rate: float) -> None:
    """P(X >= k) for every k, with the trivial ends."""
    k = np.arange(trials + 2)
    expected = stats.binom.sf(k - 1, trials, rate)
    assert binomial_tail(k, trials, rate) == pytest.approx(expected, rel=1e-8, abs=1e-250)


def test_incomplete_beta_reaches_its_ends() -> None:
    """I_0 = 0, I_1 = 1, and what lies between grows."""
    x = np.linspace(0, 1, 101)
    values = incomplete_beta(2.5, 0.5, x)
    assert values == pytest.approx(special.betainc(2.5, 0.5, x), rel=1e-10)
    assert (np.diff(values) > 0).all()
