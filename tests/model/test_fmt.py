"""Numbers read as one would say them, the same in a report's sentence, its tables and on every page."""

import pytest

from tracelens.model import fmt


@pytest.mark.parametrize(
    ("ns", "written"),
    [
        (0, "0 ns"),
        (12, "12 ns"),
        (1500, "1.50 µs"),
        (999_960, "1.00 ms"),
        (999_400, "999 µs"),
        (99_950, "100 µs"),
        (162e6, "162 ms"),
        (72.7e9, "1.21 min"),
        (-3e6, "-3.00 ms"),
        (5.5e12, "1.53 h"),
        (9e15, "2,500 h"),
    ],
)
def test_durations_have_three_digits_and_a_unit(ns: float, written: str) -> None:
    assert fmt.duration(ns) == written


@pytest.mark.parametrize(
    ("names", "written"),
    [
        ([3], "rank 3"),
        ([3, 5], "ranks 3 and 5"),
        ([1, 2, 3], "ranks 1, 2 and 3"),
        (list(range(64)), "ranks 0, 1, 2, 3, 4 and 59 more"),
    ],
)
def test_listings_of_many_ranks_are_shortened(names: list[int], written: str) -> None:
    """Few ranks are named, of many the first and how many more."""
    assert fmt.listing("rank", names) == written


def test_small_shares_keep_a_decimal() -> None:
    """Small shares keep a decimal; in a column all have as many."""
    assert (fmt.percent(0.614), fmt.percent(0.004)) == ("61 %", "0.4 %")
    assert (fmt.percent(0.614, 1), fmt.percent(0, 1)) == ("61.4 %", "0.0 %")
    assert fmt.percent_number(0.614) == "61"


def test_sizes_and_bandwidths() -> None:
    """Memory counts in powers of two, links in powers of ten; bytes per nanosecond are GB/s."""
    assert (fmt.size(24 << 20), fmt.size(10)) == ("24.0 MiB", "10 B")
    assert (fmt.bandwidth(11.8), fmt.bandwidth(0.0125)) == ("11.8 GB/s", "12.5 MB/s")
    assert fmt.bandwidth(5e-8) == "50 B/s"


def test_counts_and_ranges() -> None:
    """One is not many; a range of one step is that step."""
    assert (fmt.count(1, "step"), fmt.count(4000, "step")) == ("1 step", "4,000 steps")
    assert (fmt.steps(4, 4), fmt.steps(4, 9)) == ("step 4", "steps 4\N{EN DASH}9")
    assert fmt.capital(fmt.phase("data")) == "Data loading"


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    """Columns are as wide as their widest cell; the last side is that of those that follow."""
    rows = [("of", "x", "why"), ("rank 1", "10", ""), ("all", "5", "never")]
    assert fmt.align_cells(rows, "<><") == [
        "of       x  why",
        "rank 1  10",
        "all      5  never",
    ]
    assert fmt.align_cells(rows[1:], "<>") == ["rank 1  10", "all      5  never"]
