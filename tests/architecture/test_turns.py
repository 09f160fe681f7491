"""Tests that take turns all run within eight turns, or all in one run on request."""

import pytest
from support.turns import TURNS, select_turn


@pytest.mark.parametrize("count", [1, 2, 7, 8, 27])
def test_every_thing_has_its_turn(count: int) -> None:
    numbers = range(count)
    of_turns = [select_turn(numbers, str(turn)) for turn in range(20_000, 20_000 + TURNS)]
    assert {thing for some in of_turns for thing in some} == {*numbers}
    assert all(of_turns)
    assert select_turn(numbers, "all") == numbers
