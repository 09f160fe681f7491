"""The best runs of a series are those that trying all gives."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.stats.changepoint import find_best_runs, find_runs, fit_courses

GAINS = st.lists(st.integers(-4, 4), min_size=1, max_size=9)


def worth(gains: list[int], inside: tuple[bool, ...], price: float) -> float:
    """Return the gain of runs, less their edges within the series."""
    edges = sum(a != b for a, b in pairwise(inside))
    return sum(gain for gain, late in zip(gains, inside, strict=True) if late) - price * edges


@given(gains=GAINS, price=st.sampled_from([0.0, 0.5, 2.0, 7.0]))
def test_no_other_runs_are_worth_more(gains: list[int], price: float) -> None:
    """Of all ways to say of each row whether it is in one."""
    found = find_best_runs(np.array(gains, float), price)
    best = max(worth(gains, one, price) for one in product((False, True), repeat=len(gains)))
    assert worth(gains, tuple(found.tolist()), price) == best


@given(columns=st.lists(GAINS.map(lambda some: (some * 9)[:9]), min_size=1, max_size=4))
def test_many_series_at_once_are_the_same(columns: list[list[int]]) -> None:
    """Each column as if it were alone."""
    matrix = np.array(columns, float).T
    alone = [find_best_runs(column, 1.5) for column in matrix.T]
    assert (find_best_runs(matrix, 1.5) == np.stack(alone, axis=1)).all()


def test_runs_are_first_and_last_rows() -> None:
    """Also at the begin and at the end."""
    assert find_runs(np.array([1, 1, 0, 1, 0, 0, 1], bool)) == ((0, 1), (3, 3), (6, 6))
    assert find_runs(np.zeros(3, bool)) == ()


@pytest.mark.parametrize("seed", range(8))
def test_on_and_off_is_followed_beyond_the_window_in_which_it_was_seen(seed: int) -> None:
    """For five to nine steps each: neither the window nor the rest shows one level alone."""
    draw = np.random.default_rng(seed)
    late = np.zeros(200, bool)
    row = 10
    while row < 190:
        last = row + int(draw.integers(5, 10))
        late[row:last] = True
        row = last + int(draw.integers(5, 10))
    seen = np.zeros(200, bool)
    seen[100:150] = True
    course = fit_courses(0.4 * late + draw.normal(0.0, 0.05, 200), seen)
    assert course.pattern == "intermittent"
    assert np.mean(course.is_upper == late) > 0.97
    assert course.mean_delay == pytest.approx(0.4, abs=0.03)


@pytest.mark.parametrize("seed", range(8))
def test_one_late_stretch_is_not_cut_into_several(seed: int) -> None:
    """Noise that is correlated goes up and down within it."""
    draw = np.random.default_rng(seed)
    noise = draw.normal(0.0, 0.05, 200)
    for row in range(1, 200):
        noise[row] = 0.7 * noise[row - 1] + 0.7 * noise[row]
    late = np.zeros(200, bool)
    late[60:140] = True
    found = fit_courses(0.2 * late + noise, late)
    assert found.pattern == "transient"
    assert np.mean(found.is_upper == late) > 0.9
