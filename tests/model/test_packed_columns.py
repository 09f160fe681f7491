"""Columns that are kept from one pass to the next come back as they were."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.memory import BoundedCache
from tracelens.model.columns import FOREVER, NULL, Columns, Words
from tracelens.model.packed_columns import PackedColumns
from tracelens.schema.rules import LATEST_NS

NAMES = ("start_ns", "end_ns", "depth", "step", "bucket", "device_start_ns", "kind", "value")
LATEST = LATEST_NS
starts = st.lists(st.integers(0, LATEST), max_size=30).map(sorted)


@st.composite
def columns(draw: st.DrawFn) -> Columns:
    """Events with times anywhere, some of them open, some without a number."""
    start = np.array(draw(starts), np.int64)
    count = len(start)

    def each(values: st.SearchStrategy[int], kind: type[np.generic]) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=count, max_size=count)), kind)

    lengths = each(st.sampled_from([0, 1, 1 << 20, 1 << 40]), np.int64)
    is_open = each(st.booleans(), np.bool_)
    numbers: dict[str, np.ndarray] = {
        "start_ns": start,
        "end_ns": np.where(is_open, FOREVER, start + lengths),
        "depth": each(st.integers(0, 65_535), np.uint16),
        "step": each(st.integers(-1, (1 << 31) - 1), np.int32),
        "bucket": each(st.sampled_from([NULL, 0, 7]), np.int64),
    }
    if draw(st.booleans()):
        numbers["device_start_ns"] = each(st.sampled_from([NULL, LATEST]), np.int64)
    words = {"kind": Words(each(st.integers(-1, 2), np.int8), ("forward", "backprop", "gc"))}
    values = {"value": np.where(each(st.booleans(), np.bool_), 1.5, np.nan)}
    return Columns(count, numbers, words, values)


def same(one: Columns, other: Columns) -> bool:
    """Return whether two hold the same numbers in the same types."""
    return (
        one.height == other.height
        and one.numbers.keys() == other.numbers.keys()
        and all(one.numbers[name].dtype == other.numbers[name].dtype for name in one.numbers)
        and all(np.array_equal(one.numbers[name], other.numbers[name]) for name in one.numbers)
        and all(np.array_equal(one.words[n].codes, other.words[n].codes) for n in one.words)
        and all(one.words[name].known == other.words[name].known for name in one.words)
        and all(
            np.array_equal(one.values[name], other.values[name], equal_nan=True)
            for name in one.values
        )
    )


@settings(deadline=None)
@given(columns(), columns())
def test_they_come_back_as_they_were(one: Columns, other: Columns) -> None:
    """Also those that share arrays with another process's."""
    packed = PackedColumns.from_columns(one, NAMES)
    assert same(packed.restored(BoundedCache()), one)
    shared = PackedColumns.from_columns(other, NAMES).sharing(packed)
    assert same(shared.restored(BoundedCache()), other)


def test_equal_columns_are_held_once() -> None:
    """Of a rank whose events are those of another, only times take memory."""
    start = np.arange(0, 1_000_000, 1_000)
    numbers: dict[str, np.ndarray] = {
        "start_ns": start,
        "end_ns": start + 500,
        "step": np.arange(1_000, dtype=np.int32),
    }
    one = PackedColumns.from_columns(
        Columns(1_000, numbers, {}, {}), ("start_ns", "end_ns", "step")
    )
    late = {**numbers, "start_ns": start + np.arange(1_000), "end_ns": start + 2_000}
    other = PackedColumns.from_columns(Columns(1_000, late, {}, {}), one.names).sharing(one)
    assert other.arrays["step"] is one.arrays["step"]
    assert other.bytes_beside(one) < one.bytes_beside(None)
