"""``--ranks``, ``--steps`` and ``--time`` have one syntax; an invalid choice is one sentence."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import InvalidArgument
from tracelens.model.choice import (
    EVERYTHING,
    Choice,
    describe_choice,
    find_empty_range,
    format_ranges,
    to_ranges,
)

S = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("3", {3}),
        ("0-7,12", {*range(8), 12}),
        (" 5 , 1-2 ", {1, 2, 5}),
        ("0-3,2-5,6", set(range(7))),
        ("17-", {17, 18, 19}),
    ],
)
def test_ranges_of_numbers_are_inclusive(text: str, wanted: set[int]) -> None:
    """Ranges are inclusive, may touch and overlap, and the last may have no end."""
    choice = Choice.parse(ranks=text, steps=text)
    assert {rank for rank in range(20) if choice.has_rank(rank)} == wanted
    assert {*np.flatnonzero(choice.flag_chosen_steps(np.arange(20))).tolist()} == wanted
    assert not choice.flag_chosen_steps(np.array([-1])).any()


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("12.5-20", 12.5, 20),
        ("10s-70s", 10, 70),
        ("10-70s", 10, 70),
        ("500ms-2s", 0.5, 2),
        ("100-200ms", 0.1, 0.2),
        ("1m-1.5m", 60, 90),
        ("1h-2h", 3600, 7200),
        ("90s - 2m", 90, 120),
    ],
)
def test_times_have_units(text: str, begin: float, end: float) -> None:
    """Seconds, or with units; one that only the end has is that of both."""
    assert Choice.parse(time=text).time_range_ns == (round(begin * S), round(end * S))


def test_a_time_without_an_end() -> None:
    choice = Choice.parse(time="30-")
    assert choice.time_range_ns is not None
    assert choice.time_range_ns[0] == 30 * S
    assert choice.description == "times from 30 s on"


@pytest.mark.parametrize(
    "asked",
    [
        {"ranks": "3-1"},
        {"ranks": ""},
        {"ranks": "1,"},
        {"ranks": "-3"},
        {"ranks": "a"},
        {"ranks": "0-999999999"},
        {"ranks": "1-2-3"},
        {"steps": "260-200"},
        {"steps": "9999999999"},
        {"time": "5-1"},
        {"time": "5-5"},
        {"time": "5"},
        {"time": "5y-6y"},
        {"time": "1e3-2e3"},
    ],
)
def test_what_cannot_be_read(asked: dict[str, str]) -> None:
    """The sentence repeats the option and what was written, and says what is expected."""
    ((name, text),) = asked.items()
    with pytest.raises(InvalidArgument, match=f"--{name} {text}: .*expected .* such as"):
        Choice.parse(**asked)


ranges = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), min_size=1, max_size=6)


@given(ranges)
def test_what_is_written_is_read_again(begins_and_lengths: list[tuple[int, int]]) -> None:
    """A choice has one spelling, which gives the same choice when parsed."""
    text = ",".join(
        f"{first_number}-{first_number + further}" for first_number, further in begins_and_lengths
    )
    choice = Choice.parse(ranks=text)
    assert Choice.parse(ranks=choice.text_by_option["ranks"]) == choice
    numbers = {
        number
        for first_number, further in begins_and_lengths
        for number in range(first_number, first_number + further + 1)
    }
    assert {rank for rank in range(400) if choice.has_rank(rank)} == numbers
    assert choice.rank_ranges == to_ranges(numbers)


def test_a_choice_is_named_in_words() -> None:
    """Sentences and reports name what is chosen."""
    choice = Choice.parse("0-7,12", "200-", "10s-70s")
    assert choice.text_by_option == {"ranks": "0-7,12", "steps": "200-", "time": "10-70"}
    assert choice.description == "ranks 0-7,12, steps 200- and times 10-70 s"
    assert describe_choice(choice.text_by_option) == choice.description
    assert EVERYTHING.is_whole_run
    assert EVERYTHING.description == ""


def test_the_range_that_holds_nothing() -> None:
    assert find_empty_range(((0, 3), (7, 9)), {2, 8}) is None
    assert find_empty_range(((0, 3), (7, 9)), {2}) == format_ranges(((7, 9),)) == "7-9"
