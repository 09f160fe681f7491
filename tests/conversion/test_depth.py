"""The depth of an event is the number of spans of its thread that were open when it began."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.conversion.columns import count_depths

# Few threads and few moments, so that ties are common.
EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 8), st.integers(0, 8)).map(
        lambda found: (found[0], found[1], found[1] + found[2])
    ),
    max_size=30,
)


def find(events: list[tuple[int, int, int]]) -> list[int]:
    columns = np.array(events, np.int64).reshape(-1, 3)
    found: list[int] = count_depths(columns[:, 0], columns[:, 1], columns[:, 2]).tolist()
    return found


def comes_before(at: int, other: int, events: list[tuple[int, int, int]]) -> bool:
    """Whether `at` begins earlier, or together and lasts longer, or equal and was given first."""
    (_, start, end), (_, other_start, other_end) = events[at], events[other]
    return (start, -end, at) < (other_start, -other_end, other)


@given(EVENTS)
def test_depth_is_what_counting_says(events: list[tuple[int, int, int]]) -> None:
    """For any spans, nested or not, of any threads."""
    expected = [
        sum(
            comes_before(enclosing, index, events)
            and events[enclosing][0] == thread
            and end > start
            for enclosing, (_, _, end) in enumerate(events)
        )
        for index, (thread, start, _) in enumerate(events)
    ]
    assert find(events) == expected


def test_nested_call_tree() -> None:
    """A step holds a forward pass, which holds two layers; the next step is outside again."""
    assert find([(0, 0, 100), (0, 10, 50), (0, 10, 20), (0, 20, 50), (0, 100, 200)]) == [
        0,
        1,
        2,
        2,
        0,
    ]


def test_threads_do_not_nest_in_each_other() -> None:
    """What another thread has open does not count."""
    assert find([(0, 0, 100), (1, 10, 20), (0, 30, 40)]) == [0, 0, 1]


def test_no_events_have_no_depths() -> None:
    assert find([]) == []


@pytest.mark.parametrize(
    "events",
    [
        [(0, 0, 10), (0, 0, 50)],
        [(0, 20, 30), (0, 0, 100)],
        [(1, 20, 30), (1, 0, 100)],
    ],
    ids=["all together", "latest first", "no thread 0"],
)
def test_what_holds_another_may_be_given_after_it(events: list[tuple[int, int, int]]) -> None:
    """Records come in the order in which they began, mostly."""
    assert find(events) == [1, 0]
