"""Ended spans of ranks are matched by their numbers."""

import numpy as np

from tracelens.watch.ended_spans import MAX_KEPT, EndedSpans, match_spans


def spans_of(*rows: tuple[int, int, int, int]) -> EndedSpans:
    """Make spans of rows: number, step, start and end."""
    return EndedSpans(*np.array(rows, np.int64).reshape(-1, 4).T)


def test_only_numbers_of_all_ranks_match() -> None:
    first = spans_of((4, 2, 40, 45), (5, 2, 50, 52), (6, 3, 60, 61))
    second = spans_of((5, 2, 5, 9), (4, 2, 1, 3))
    matched = match_spans([first, second])
    assert matched.numbers.tolist() == [4, 5]
    assert (matched.end_ns - matched.start_ns).tolist() == [[5, 2], [2, 4]]


def test_calls_in_different_steps_do_not_match() -> None:
    matched = match_spans(
        [spans_of((4, 2, 0, 1), (5, 3, 0, 1)), spans_of((4, 2, 0, 1), (5, 4, 0, 1))]
    )
    assert matched.numbers.tolist() == [4]


def test_of_two_spans_with_one_number_the_last_counts() -> None:
    twice, once = spans_of((1, 1, 0, 5), (1, 1, 7, 9)), spans_of((1, 1, 3, 4))
    assert match_spans([twice, once]).start_ns.tolist() == [[7, 3]]


def test_nothing_matches_nothing() -> None:
    assert not len(match_spans([EndedSpans.empty(), spans_of((1, 1, 0, 5))]).numbers)


def test_the_oldest_are_forgotten() -> None:
    numbers = np.arange(MAX_KEPT)
    many = EndedSpans(numbers, numbers, numbers, numbers)
    joined = many.joined_with(spans_of((MAX_KEPT, MAX_KEPT, 0, 1)))
    assert (joined.numbers[0], joined.numbers[-1], len(joined.numbers)) == (1, MAX_KEPT, MAX_KEPT)
    assert joined.from_step(MAX_KEPT - 1).numbers.tolist() == [MAX_KEPT - 1, MAX_KEPT]
