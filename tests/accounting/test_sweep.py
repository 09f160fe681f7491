"""The pass over a thread's time: what is in C and what is in numpy cut it alike."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import check_examples, few_or_many

from tracelens.accounting import sweep
from tracelens.accounting.categories import BLOCKED, CATEGORIES, COMMUNICATION, QUEUED, USER
from tracelens.accounting.spans import Spans, Surroundings
from tracelens.accounting.sweep import partition
from tracelens.arrays import Array, Ints
from tracelens.model.intervals import Intervals

LENGTH = 40
CODES = (*range(USER + 1), BLOCKED, COMMUNICATION, *range(QUEUED, QUEUED + USER + 1))
WORK = tuple(range(USER + 1))

native = pytest.mark.skipif(sweep._NATIVE is None, reason="the part in C is not built here")


def times(draw: st.DrawFn, most: int) -> Ints:
    """Draw begins and ends, also outside of the steps and without a length, in any order."""
    moments = st.tuples(st.integers(-5, LENGTH + 5), st.integers(0, LENGTH))
    drawn = draw(st.lists(moments, max_size=most))
    found = np.array([(begin, begin + length) for begin, length in drawn], np.int64)
    return found.reshape(-1, 2).T


@st.composite
def intervals(draw: st.DrawFn) -> Intervals:
    return Intervals(*times(draw, 6))


@st.composite
def spans(draw: st.DrawFn, codes: tuple[int, ...]) -> Spans:
    """Draw spans that may lie in each other, touch, and overlap as they should not."""
    start, end = times(draw, 12)
    said = st.tuples(st.sampled_from(codes), st.integers(-1, 3))
    drawn = draw(st.lists(said, min_size=len(start), max_size=len(start)))
    code, name = np.array(drawn, np.int32).reshape(-1, 2).T
    return Spans(start, end, code.astype(np.int64), name.astype(np.int64))


@st.composite
def surroundings(draw: st.DrawFn) -> Surroundings:
    names = ("wait", "queue", "flight", "stop", "idle_cause")
    sets = {f"{name}_intervals": draw(intervals()) for name in names}
    return Surroundings(**sets, device_work=draw(spans(WORK)))


@st.composite
def windows(draw: st.DrawFn) -> Ints:
    """Draw bounds of steps; some steps take no time."""
    return np.array(
        sorted(draw(st.lists(st.integers(0, LENGTH), min_size=2, max_size=6))), np.int64
    )


@native
@pytest.mark.parametrize("examples", few_or_many(80, 250))
def test_native_and_numpy_sweeps_agree(examples: int) -> None:
    """C and Python return the same arrays for any overlapping spans."""

    def check(thread: Spans, around: Surroundings, steps: Ints) -> None:
        in_c = partition(thread, around, steps)
        in_numpy = partition(thread, around, steps, sweep.cut_in_numpy)
        for name, actual in in_c._asdict().items():
            expected = getattr(in_numpy, name)
            assert actual.dtype == expected.dtype, name
            np.testing.assert_array_equal(actual, expected, err_msg=name)

    check_examples(check, examples, spans(CODES), surroundings(), windows())


@given(spans(CODES), surroundings(), windows())
def test_pieces_cover_all_steps_without_gaps(
    thread: Spans, around: Surroundings, steps: Ints
) -> None:
    """Pieces touch from the first step to the last, and each step's categories sum to its length."""
    sums = partition(thread, around, steps)
    assert sums.spent_ns.sum(axis=1).tolist() == np.diff(steps).tolist()
    assert (sums.spent_ns >= 0).all()
    assert (np.diff(sums.bounds_ns) > 0).all()
    assert (sums.bounds_ns[0], sums.bounds_ns[-1]) == (steps[0], steps[-1])
    assert set(sums.category_codes.tolist()) <= set(range(len(CATEGORIES)))


@native
def test_arrays_of_wrong_length_type_or_order_are_refused() -> None:
    """What is too short, of another type or out of order is refused, not read."""
    arrays = [np.array([0, 10], np.int64), *no_spans(), *no_spans(), *[np.zeros(0, np.int64)] * 10]
    assert count_segments_cut(arrays) == 1
    short = [*arrays]
    short[1:3] = [np.array([1], np.int64)] * 2
    with pytest.raises(ValueError, match="array 3 is of another type, or too short"):
        count_segments_cut(short)
    damaged = [*arrays]
    damaged[4] = np.zeros(0, np.int64)
    with pytest.raises(ValueError, match="array 4 is of another type"):
        count_segments_cut(damaged)
    with pytest.raises(IndexError):
        count_segments_cut(arrays[:-1])
    with pytest.raises(ValueError, match="no steps"):
        count_segments_cut([np.array([0], np.int64), *arrays[1:]])
    with pytest.raises(ValueError, match="a code is none"):
        count_segments_cut([arrays[0], *one_span(code=77), *arrays[6:]])
    with pytest.raises(ValueError, match="array 0 is of another type, or too short"):
        count_segments_cut([arrays[0], *one_span(code=1), *arrays[6:]], room=1)


def count_segments_cut(inputs: list[Array], room: int = 8) -> int:
    sizes = (room + 1, room, room, room, len(CATEGORIES), room)
    kinds = (np.int64, np.int32, np.int8, np.int32, np.int64, np.int64)
    arrays = tuple(np.zeros(size, kind) for size, kind in zip(sizes, kinds, strict=True))
    assert sweep._NATIVE is not None
    return int(sweep._NATIVE.cut(tuple(inputs), arrays))


def no_spans() -> list[Array]:
    return one_span(code=0, count=0)


def one_span(code: int, count: int = 1) -> list[Array]:
    start, end = np.full(count, 2, np.int64), np.full(count, 5, np.int64)
    return [start, end, end, np.full(count, code, np.int16), np.zeros(count, np.int32)]
