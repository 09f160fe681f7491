"""What rows of a recording are believed: the others are dropped and counted.

Files that the recorder wrote are sound and in order: that is looked up in a few extremes, and rows
are only judged one by one, or sorted, where it is not so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import numpy as np
import polars as pl

from tracelens.memory import BoundedCache
from tracelens.model.columns import MISSING, NULL, Columns
from tracelens.model.trace import EVENT_COLUMNS
from tracelens.readers.native.soundness import ALWAYS_READ, is_sound
from tracelens.readers.rules import counted, reason
from tracelens.readers.rules import held_to_range as held_to_range_of_frame
from tracelens.schema.rules import LATEST_NS, LONGEST_NS, RULES, Rule

if TYPE_CHECKING:
    import pyarrow as pa

    from tracelens.arrays import Array, Ints
    from tracelens.readers.native.arrow_file import Recording

_ON_DEVICE: Final = ("device_start_ns", "device_duration_ns")
_ANY: Final = Rule()


def usable_columns(recording: Recording) -> tuple[Columns, dict[str, int]]:
    """Return the usable events of one process by start as arrays, and how many were left out, by reason.

    `recording` may hold some columns only, but all of `ALWAYS_READ`.
    """
    table = recording.table
    if not is_sound(table):
        events, lost = usable_events(recording)
        return Columns.of_frame(events), lost
    known = {group.index: group.uid for group in recording.side.communicators}
    columns = Columns.of_table(table)
    numbers = {name: held_to_range(name, found) for name, found in columns.numbers.items()}
    values = {name: held_to_range(name, found) for name, found in columns.values.items()}
    ranged = Columns(columns.height, numbers, columns.words, values)
    return repaired_columns(ranged, known, BoundedCache()).in_order(), {}


def held_to_range(name: str, found: Array) -> Array:
    """Return a column of numbers, in which values that break a rule are as those that are missing."""
    rule = RULES.get(name, _ANY)
    if rule.finite:
        infinite = np.isinf(found)
        return np.where(infinite, np.nan, found) if infinite.any() else found
    if rule.drops or rule.least is None or found.dtype.kind == "u":
        return found
    missing = MISSING.get(name, NULL)
    outside = found < rule.least
    if rule.most is not None:
        outside |= found > rule.most
    return np.where(outside, missing, found) if np.any(found[outside] != missing) else found


def repaired_columns(columns: Columns, known: dict[int, str], cache: BoundedCache) -> Columns:
    """Return identifiers for numbers, and times on a device only where both are in range.

    Other values have been held to their ranges before.
    """
    numbers = dict(columns.numbers)
    uids = tuple(known.values())
    if "communicator" in numbers:
        found, order = numbers["communicator"], tuple(known)
        numbers["communicator"] = cache.get_or_make(
            "communicators", (found,), lambda: _places(found, order), order
        )
    held = [name for name in _ON_DEVICE if name in numbers]
    if held:
        start, length = (columns.number(name) for name in _ON_DEVICE)
        timed = (start >= 0) & (start <= LATEST_NS) & (length >= 0) & (length <= LONGEST_NS)
        for name in held:
            numbers[name] = np.where(timed, numbers[name], MISSING.get(name, NULL))
    return Columns(columns.height, numbers, columns.words, columns.values, uids)


def _places(numbers: Array, known: tuple[int, ...]) -> Array:
    """Return where each number stands among the known ones; -1 for others."""
    found = np.full(len(numbers), -1, np.int32)
    for place, number in enumerate(known):
        found[numbers == number] = place
    same = found.dtype == numbers.dtype and np.array_equal(found, numbers)
    found.setflags(write=numbers.flags.writeable)
    return numbers if same else found  # so that what several processes share stays one


def usable_events(recording: Recording) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return the usable events of one process by start, and how many were left out, by reason.

    Columns that hold nothing are left out, and so are those that are the same for a whole process.
    """
    table = cast("pl.DataFrame", pl.from_arrow(_filled(recording.table)))
    usable, lost = (table, {}) if is_sound(recording.table) else _sound_rows(table)
    events = usable.with_columns(
        end_ns=pl.col("start_ns") + pl.col("duration_ns"),
        **(held_to_range_of_frame(usable.schema) | _identified(recording, usable.columns)),
    )
    events = events.select(
        pl.col(name).cast(kind) for name, kind in EVENT_COLUMNS.items() if name in events.columns
    )
    return _in_order(events), lost


def _filled(table: pa.Table) -> pa.Table:
    """Drop the columns in which every row is null."""
    names = [
        name
        for name in table.column_names
        if name in ALWAYS_READ or table[name].null_count < table.num_rows
    ]
    return table.select(names)


def sound_rows(table: pa.Table) -> tuple[Ints, dict[str, int]]:
    """Return which rows of a recording are usable, and how many are not, by reason.

    `table` has at least the columns `ALWAYS_READ`.
    """
    if is_sound(table):
        return np.arange(table.num_rows), {}
    frame = cast("pl.DataFrame", pl.from_arrow(table)).with_row_index("row")
    usable, lost = _sound_rows(frame)
    return usable["row"].to_numpy().astype(np.int64), lost


def _sound_rows(table: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    why = table.select(reason(table.columns).alias("why")).to_series()
    return table.filter(why.is_null()), counted(why)


def _identified(recording: Recording, columns: list[str]) -> dict[str, pl.Expr]:
    """Return what all members of a communicator share, instead of this process's own number for it."""
    if "communicator" not in columns:
        return {}
    known = {group.index: group.uid for group in recording.side.communicators}
    number, kind = pl.col("communicator"), EVENT_COLUMNS["communicator"]
    return {"communicator": number.replace_strict(known, default=None, return_dtype=kind)}


def _in_order(events: pl.DataFrame) -> pl.DataFrame:
    """Sort by start, outer spans first; as recordings are in order already, look first."""
    later, deeper = pl.col("start_ns").diff(), pl.col("depth").cast(pl.Int32).diff()
    risen = (later > 0) | ((later == 0) & (deeper >= 0))
    if events.select(risen.drop_nulls().all()).item():
        return events
    return events.sort("start_ns", "depth", maintain_order=True)
