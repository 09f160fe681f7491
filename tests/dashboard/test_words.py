"""Numbers and names are written for people, and names from a trace stay inert."""

from __future__ import annotations

import pytest

from tracelens_dashboard import text


@pytest.mark.parametrize(
    ("ns", "written"),
    [
        (0, "0 ms"),
        (12, "12.0 ns"),
        (1500, "1.50 µs"),
        (162e6, "162 ms"),
        (72.7e9, "72.7 s"),
        (-3e6, "-3.00 ms"),
    ],
)
def test_durations(ns: float, written: str) -> None:
    """Durations have three digits and a unit that suits them."""
    assert text.duration(ns) == written


@pytest.mark.parametrize(
    ("numbers", "written"),
    [
        ([3], "rank 3"),
        ([3, 5], "ranks 3 and 5"),
        ([1, 2, 3], "ranks 1, 2 and 3"),
        (list(range(64)), "ranks 0, 1, 2, 3, 4 and 59 more"),
    ],
)
def test_listings(numbers: list[int], written: str) -> None:
    """Few ranks are named, of many the first and how many more."""
    assert text.listing("rank", numbers) == written


def test_other_amounts() -> None:
    """Shares, sizes, counts and ranges of steps read as one would say them."""
    assert (text.percent(0.614), text.percent(0.004)) == ("61 %", "0.4 %")
    assert (text.size(24 << 20), text.size(10)) == ("24.0 MiB", "10 B")
    assert (text.count(1, "step"), text.count(4000, "step")) == ("1 step", "4,000 steps")
    assert (text.span_of((4, 4)), text.span_of((4, 9))) == ("step 4", "steps 4-9")


def test_a_name_from_a_trace_is_inert() -> None:
    """Markup that Plotly would read is escaped, and an endless name is cut."""
    assert text.safe("<a href='x'>&</a>") == "&lt;a href='x'&gt;&amp;&lt;/a&gt;"
    assert len(text.safe("x" * 5000)) == text.LONGEST_NAME
    assert text.safe("a\u202eb") == "a\\x202eb"
    assert text.safe(None) == ""
