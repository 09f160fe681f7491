"""Medians are those of NumPy, to the last bit, and blocks are condensed as one by one."""

from itertools import pairwise

import numpy as np
import pytest

from tracelens.stats import robust
from tracelens.stats.robust import (
    block_edges,
    block_medians,
    bootstrap_interval,
    measure_deviation,
    measure_step_deviation,
    medians,
)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(1, 3), (2, 8), (7, 5), (40, 64), (101, 9)], ids=str)
def test_medians_are_those_of_numpy(shape: tuple[int, int], axis: int) -> None:
    """Of even and odd counts, with and without gaps."""
    draw = np.random.default_rng(sum(shape))
    values = draw.standard_t(3, shape)
    assert np.array_equal(medians(values, axis), np.median(values, axis=axis))
    values[draw.random(shape) < 0.3] = np.nan
    whole = np.where(np.isnan(values).all(axis=axis, keepdims=True), 1.0, values)
    assert np.array_equal(medians(whole, axis), np.nanmedian(whole, axis=axis))


def test_medians_in_chunks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are sorted a few at a time where there are many values."""
    values = np.random.default_rng(3).normal(size=(7, 5))
    expected = medians(values, axis=1)
    monkeypatch.setattr(robust, "MAX_NUMBERS_SORTED_AT_ONCE", 10)
    assert np.array_equal(medians(values, axis=1), expected)


def test_deviation_of_nothing_is_unknown() -> None:
    """A missing value or a single step has no deviation."""
    assert np.isnan(measure_deviation(np.array([])))
    assert np.isnan(measure_deviation(np.array([1.0, np.nan])))
    assert measure_step_deviation(np.array([1.0])) == 0.0
    assert bootstrap_interval(np.array([]), 1.0) == (0.0, 0.0)


def test_nothing_has_no_median() -> None:
    """A row in which everything is missing, and one without values, is nan, without a warning."""
    assert np.isnan(medians(np.full((2, 3), np.nan), axis=1)).all()
    assert np.isnan(medians(np.zeros((2, 0)), axis=1)).tolist() == [True, True]


@pytest.mark.parametrize("steps", [4, 7, 8, 46, 256, 300])
def test_the_last_block_takes_the_remainder(steps: int) -> None:
    """The last block takes the remainder."""
    values, edges = np.random.default_rng(0).normal(size=(steps, 3)), block_edges(steps)
    each = [np.median(values[a:b], axis=0) for a, b in pairwise(edges)]
    assert np.array_equal(block_medians(values, edges), each)
