"""The table of a stretch of time is what counting span by span gives."""

from collections import defaultdict

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runs.traces import call, span, trace_of

from tracelens.lod.tracks.area import sum_by_name
from tracelens.lod.viewport import Window


def record_spans(rows: list[dict[str, object]]) -> pl.DataFrame:
    return trace_of(rows).events.collect()


def test_only_what_lies_within_counts_as_time_and_whole_spans_as_durations() -> None:
    """A span that begins before, one that ends after, one that is still open."""
    events = record_spans(
        [
            span(0, "forward", 0, 1_000, "f", step=0),
            span(0, "forward", 1_500, 2_000, "f", step=1),
            span(0, "backprop", 2_000, 5_000, "b", step=1),
            span(0, "update", 5_000, None, "u", step=1),
            span(0, "data", 6_000, 7_000, "later", step=2),
        ]
    )
    rows = sum_by_name(events, Window(500, 6_000))
    assert rows["name", "kind", "count", "total_ns"].rows() == [
        ("b", "backprop", 1, 3_000),
        ("f", "forward", 2, 1_000),
        ("u", "update", 1, 1_000),
    ]
    assert rows["share"].to_list() == pytest.approx([3_000 / 5_500, 1_000 / 5_500, 1_000 / 5_500])
    assert rows["mean_ns"].to_list() == [3_000, 750, None]
    assert rows["p95_ns"].to_list() == [3_000, 975, None]


def test_buckets_are_rows_of_their_own_and_a_span_without_a_name_has_its_kind() -> None:
    events = record_spans([span(0, "forward", 0, 9), call(0, 0, 1, 5, bucket=3)])
    names = sum_by_name(events, Window(0, 10))["name"].to_list()
    assert names[0] == "forward"
    assert "bucket 3" in names[1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 900), st.integers(1, 300), st.sampled_from("abc")), max_size=30
    ),
    st.integers(0, 800),
    st.integers(1, 400),
)
def test_it_equals_counting_span_by_span(
    spans: list[tuple[int, int, str]], start: int, width: int
) -> None:
    window = Window(start, start + width)
    lengths: dict[str, list[int]] = defaultdict(list)
    within: dict[str, int] = defaultdict(int)
    for begin, length, name in spans:
        inside_ns = min(begin + length, window.end_ns) - max(begin, window.start_ns)
        if inside_ns > 0:
            lengths[name].append(length)
            within[name] += inside_ns
    events = record_spans([span(0, "data", a, a + length, name) for a, length, name in spans])
    rows = {row["name"]: row for row in sum_by_name(events, window).iter_rows(named=True)}
    assert rows.keys() == lengths.keys()
    for name, row in rows.items():
        assert (row["count"], row["total_ns"]) == (len(lengths[name]), within[name])
        assert row["mean_ns"] == pytest.approx(np.mean(lengths[name]))
        assert row["p95_ns"] == pytest.approx(np.percentile(lengths[name], 95))
        assert row["share"] == pytest.approx(within[name] / width)
