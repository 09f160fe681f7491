"""Columns that are kept from one pass to the next come back as they were."""

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

    def draw_array(values: st.SearchStrategy[int], kind: type[np.generic]) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=count, max_size=count)), kind)

    lengths = draw_array(st.sampled_from([0, 1, 1 << 20, 1 << 40]), np.int64)
    is_open = draw_array(st.booleans(), np.bool_)
    numbers: dict[str, np.ndarray] = {
        "start_ns": start,
        "end_ns": np.where(is_open, FOREVER, start + lengths),
        "depth": draw_array(st.integers(0, 65_535), np.uint16),
        "step": draw_array(st.integers(-1, (1 << 31) - 1), np.int32),
        "bucket": draw_array(st.sampled_from([NULL, 0, 7]), np.int64),
    }
    if draw(st.booleans()):
        numbers["device_start_ns"] = draw_array(st.sampled_from([NULL, LATEST]), np.int64)
    words = {"kind": Words(draw_array(st.integers(-1, 2), np.int8), ("forward", "backprop", "gc"))}
    values = {"value": np.where(draw_array(st.booleans(), np.bool_), 1.5, np.nan)}
    return Columns(count, numbers, words, values)


def are_equal(columns: Columns, other_columns: Columns) -> bool:
    """Return True if both hold the same numbers in the same types."""
    return (
        columns.row_count == other_columns.row_count
        and columns.number_columns.keys() == other_columns.number_columns.keys()
        and all(
            columns.number_columns[name].dtype == other_columns.number_columns[name].dtype
            for name in columns.number_columns
        )
        and all(
            np.array_equal(columns.number_columns[name], other_columns.number_columns[name])
            for name in columns.number_columns
        )
        and all(
            np.array_equal(columns.word_columns[n].codes, other_columns.word_columns[n].codes)
            for n in columns.word_columns
        )
        and all(
            columns.word_columns[name].vocabulary == other_columns.word_columns[name].vocabulary
            for name in columns.word_columns
        )
        and all(
            np.array_equal(
                columns.value_columns[name], other_columns.value_columns[name], equal_nan=True
            )
            for name in columns.value_columns
        )
    )


@settings(deadline=None)
@given(columns(), columns())
def test_they_come_back_as_they_were(one: Columns, other: Columns) -> None:
    """Also those that share arrays with another process's."""
    packed = PackedColumns.from_columns(one, NAMES)
    assert are_equal(packed.restore(BoundedCache()), one)
    shared = PackedColumns.from_columns(other, NAMES).share_arrays_of(packed)
    assert are_equal(shared.restore(BoundedCache()), other)


def test_equal_columns_are_held_once() -> None:
    """Of a rank whose events are those of another, only times take memory."""
    start = np.arange(0, 1_000_000, 1_000)
    numbers: dict[str, np.ndarray] = {
        "start_ns": start,
        "end_ns": start + 500,
        "step": np.arange(1_000, dtype=np.int32),
    }
    packed = PackedColumns.from_columns(
        Columns(1_000, numbers, {}, {}), ("start_ns", "end_ns", "step")
    )
    late = {**numbers, "start_ns": start + np.arange(1_000), "end_ns": start + 2_000}
    shared = PackedColumns.from_columns(Columns(1_000, late, {}, {}), packed.names).share_arrays_of(
        packed
    )
    assert shared.array_by_name["step"] is packed.array_by_name["step"]
    assert shared.count_unshared_bytes(packed) < packed.count_unshared_bytes(None)


def test_columns_without_rows_get_times() -> None:
    restored = PackedColumns.from_columns(Columns(0, {}, {}, {}), NAMES).restore(BoundedCache())
    assert restored.row_count == 0
    assert restored.number_column("start_ns").tolist() == []
