"""Drops and counts the rows of a recording that break a rule.

Files that the recorder wrote are sound and in order: a few extremes tell that. Rows are only judged one
by one, or sorted, where it is not so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import numpy as np
import polars as pl

from tracelens.memory import BoundedCache
from tracelens.model.columns import MISSING, NULL, Columns
from tracelens.model.trace import EVENT_COLUMNS
from tracelens.readers import rules
from tracelens.readers.native.soundness import ALWAYS_READ, is_sound
from tracelens.schema.rules import LATEST_NS, LONGEST_NS, RULES, Rule

if TYPE_CHECKING:
    import pyarrow as pa

    from tracelens.arrays import Array, Ints
    from tracelens.readers.native.arrow_file import Recording

_DEVICE_TIMES: Final = ("device_start_ns", "device_duration_ns")
_NO_RULE: Final = Rule()


def select_usable_columns(recording: Recording) -> tuple[Columns, dict[str, int]]:
    """Return the usable events of one process by start as arrays, and how many were left out, by reason.

    `recording` may hold some columns only, but all of `ALWAYS_READ`.
    """
    table = recording.table
    if not is_sound(table):
        events, count_by_reason = select_usable_events(recording)
        return Columns.from_frame(events), count_by_reason
    columns = Columns.from_table(table)
    numbers = {name: hold_to_range(name, values) for name, values in columns.number_columns.items()}
    fractions = {
        name: hold_to_range(name, values) for name, values in columns.value_columns.items()
    }
    in_range = Columns(columns.row_count, numbers, columns.word_columns, fractions)
    uid_by_index = {group.index: group.uid for group in recording.side_tables.communicators}
    return repair_columns(in_range, uid_by_index, BoundedCache()).sort_by_begin(), {}


def hold_to_range(name: str, values: Array) -> Array:
    """Return a column, [row], in which values that break its rule are the number of a missing value."""
    rule = RULES.get(name, _NO_RULE)
    if rule.must_be_finite:
        is_infinite = np.isinf(values)
        return np.where(is_infinite, np.nan, values) if is_infinite.any() else values
    if rule.drops_row or rule.minimum is None or values.dtype.kind == "u":
        return values
    missing_value = MISSING.get(name, NULL)
    is_outside = values < rule.minimum
    if rule.maximum is not None:
        is_outside |= values > rule.maximum
    has_bad_values = np.any(values[is_outside] != missing_value)
    return np.where(is_outside, missing_value, values) if has_bad_values else values


def repair_columns(columns: Columns, uid_by_index: dict[int, str], cache: BoundedCache) -> Columns:
    """Return columns with the uids of communicators, and device times only where both are in range.

    Other values have been held to their ranges before.

    Args:
        columns: Of one process; `communicator` is the index that this process gave it.
        uid_by_index: The uid of each such index. Its order is that of the returned uids, by which the
            returned columns refer to communicators; -1 = none.
        cache: Keeps a renumbered column for the next call with the same one.
    """
    numbers = dict(columns.number_columns)
    if "communicator" in numbers:
        indices, known_indices = numbers["communicator"], tuple(uid_by_index)
        numbers["communicator"] = cache.get_or_make(
            "communicators", (indices,), lambda: _renumber(indices, known_indices), known_indices
        )
    time_columns = [name for name in _DEVICE_TIMES if name in numbers]
    if time_columns:
        start_ns, duration_ns = (columns.number_column(name) for name in _DEVICE_TIMES)
        are_both_in_range = (start_ns >= 0) & (start_ns <= LATEST_NS)
        are_both_in_range &= (duration_ns >= 0) & (duration_ns <= LONGEST_NS)
        for name in time_columns:
            numbers[name] = np.where(are_both_in_range, numbers[name], MISSING.get(name, NULL))
    uids = tuple(uid_by_index.values())
    return Columns(columns.row_count, numbers, columns.word_columns, columns.value_columns, uids)


def _renumber(numbers: Array, known_numbers: tuple[int, ...]) -> Array:
    """Return the index of each number, [row], in `known_numbers`; -1 for others."""
    indices = np.full(len(numbers), -1, np.int32)
    for index, number in enumerate(known_numbers):
        indices[numbers == number] = index
    indices.setflags(write=numbers.flags.writeable)
    is_same = indices.dtype == numbers.dtype and np.array_equal(indices, numbers)
    # An array that several processes share stays one.
    return numbers if is_same else indices


def select_usable_events(recording: Recording) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return the usable events of one process by start, and how many were left out, by reason.

    Columns that hold nothing are left out, and so are those that are the same for a whole process.
    """
    table = recording.table
    names = [n for n in table.column_names if n in ALWAYS_READ or table[n].null_count < len(table)]
    events = cast("pl.DataFrame", pl.from_arrow(table.select(names)))
    count_by_reason: dict[str, int] = {}
    if not is_sound(table):
        events, count_by_reason = _drop_unusable(events)
    replacements = rules.hold_to_range(events.schema)
    if "communicator" in events.columns:  # all members share the uid, unlike this process's index
        uid_by_index = {group.index: group.uid for group in recording.side_tables.communicators}
        replacements["communicator"] = pl.col("communicator").replace_strict(
            uid_by_index, default=None, return_dtype=EVENT_COLUMNS["communicator"]
        )
    events = events.with_columns(end_ns=pl.col("start_ns") + pl.col("duration_ns"), **replacements)
    events = events.select(
        pl.col(name).cast(dtype) for name, dtype in EVENT_COLUMNS.items() if name in events.columns
    )
    return _sort_events(events), count_by_reason


def find_sound_rows(table: pa.Table) -> tuple[Ints, dict[str, int]]:
    """Return the indices of the usable rows of a recording, and how many are not usable, by reason.

    `table` has at least the columns `ALWAYS_READ`.
    """
    if is_sound(table):
        return np.arange(table.num_rows), {}
    numbered_events = cast("pl.DataFrame", pl.from_arrow(table)).with_row_index("row")
    usable_rows, count_by_reason = _drop_unusable(numbered_events)
    return usable_rows["row"].to_numpy().astype(np.int64), count_by_reason


def _drop_unusable(events: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    reasons = events.select(rules.find_reason_left_out(events.columns).alias("reason")).to_series()
    return events.filter(reasons.is_null()), rules.count_reasons(reasons)


def _sort_events(events: pl.DataFrame) -> pl.DataFrame:
    """Sort by start, outer spans first; as recordings are in order already, look first."""
    start_change_ns, depth_change = pl.col("start_ns").diff(), pl.col("depth").cast(pl.Int32).diff()
    is_in_order = (start_change_ns > 0) | ((start_change_ns == 0) & (depth_change >= 0))
    if events.select(is_in_order.drop_nulls().all()).item():
        return events
    return events.sort("start_ns", "depth", maintain_order=True)
