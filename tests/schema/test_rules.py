"""Bounds of values are those of the page on the format, and counts by reason add up."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.schema.rules import LATEST_NS, LONGEST_NS, RULES, add_counts

SECOND = 10**9
COUNTS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 9))


def test_times_end_in_2100_and_nothing_lasts_more_than_a_year() -> None:
    assert int(datetime(2100, 1, 1, tzinfo=UTC).timestamp()) * SECOND == LATEST_NS
    assert timedelta(days=366).total_seconds() * SECOND == LONGEST_NS
    for name in ("start_ns", "device_start_ns"):
        assert (RULES[name].minimum, RULES[name].maximum) == (0, LATEST_NS)
    for name in ("duration_ns", "device_duration_ns"):
        assert (RULES[name].minimum, RULES[name].maximum) == (0, LONGEST_NS)


@pytest.mark.parametrize("name", RULES)
def test_what_is_said_of_a_column(name: str) -> None:
    """Only steps may be -1, only times and bytes too large; only what is never null drops."""
    rule = RULES[name]
    assert rule.minimum in {None, -1 if name == "step" else 0}
    assert (rule.maximum is not None) is (name.endswith("_ns") or name == "bytes")
    assert rule.drops_row is (name in {"start_ns", "duration_ns", "type", "status"})
    assert rule.must_be_finite is (name == "value")
    assert bool(rule.allowed_words) is (name in {"type", "status"})


@given(COUNTS, COUNTS)
def test_counts_by_reason_add_up(counts: dict[str, int], further_counts: dict[str, int]) -> None:
    copies = (dict(counts), dict(further_counts))
    sums = add_counts(counts, further_counts)
    assert sums.keys() == counts.keys() | further_counts.keys()
    assert Counter(sums) == Counter(counts) + Counter(further_counts)
    assert (counts, further_counts) == copies
