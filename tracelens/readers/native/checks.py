"""What rows of a recording are believed: the others are dropped and counted.

Files that the recorder wrote are sound and in order: that is looked up in a few extremes, and rows
are only judged one by one, or sorted, where it is not so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import numpy as np
import polars as pl

from tracelens.memory import Known
from tracelens.model.columns import MISSING, NULL, WORDS, Columns
from tracelens.model.trace import EVENT_COLUMNS
from tracelens.readers.base import LATEST_NS, LONGEST_NS, sane
from tracelens.schema.arrow import EVENT_SCHEMA
from tracelens.schema.vocabulary import EVENT_TYPES, STATUSES

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    import pyarrow as pa

    from tracelens.arrays import Array, Ints
    from tracelens.readers.native.arrow_file import Recording

_KNOWN_ROWS: Final = 1 << 19  # of columns that are compared with those of other files
_ON_DEVICE: Final = ("device_start_ns", "device_duration_ns")
KNOWN_WORDS: Final = {"type": EVENT_TYPES, "status": STATUSES}
ALWAYS_SET: Final = tuple(column.name for column in EVENT_SCHEMA if not column.nullable)
ALWAYS_READ: Final = ("duration_ns", *ALWAYS_SET)


def usable_columns(recording: Recording) -> tuple[Columns, int]:
    """Return the usable events of one process by start as arrays, and how many were left out.

    `recording` may hold some columns only, but all of `ALWAYS_READ`.
    """
    table = recording.table
    if not _is_sound(table):
        events, unusable = usable_events(recording)
        return Columns.of_frame(events), unusable
    known = {group.index: group.uid for group in recording.side.communicators}
    return repaired_columns(Columns.of_table(table), known).in_order(), 0


def repaired_columns(columns: Columns, known: dict[int, str]) -> Columns:
    """Return identifiers for numbers, and nothing for what cannot be."""
    numbers = dict(columns.numbers)
    if columns.height and numbers["step"].min() < -1:
        numbers["step"] = np.maximum(numbers["step"], -1)
    if "bytes" in numbers and numbers["bytes"].min(initial=-1) < -1:
        numbers["bytes"] = np.maximum(numbers["bytes"], -1)
    uids = tuple(known.values())
    if "communicator" in numbers:
        found, order = numbers["communicator"], tuple(known)
        numbers["communicator"] = _PLACES.of((found,), lambda: _places(found, order), order)
    held = [name for name in _ON_DEVICE if name in numbers]
    if held:
        start, length = (columns.number(name) for name in _ON_DEVICE)
        timed = (start >= 0) & (start <= LATEST_NS) & (length >= 0) & (length <= LONGEST_NS)
        for name in held:
            numbers[name] = np.where(timed, numbers[name], MISSING.get(name, NULL))
    values = {
        name: np.where(np.isinf(found), np.nan, found) if np.isinf(found).any() else found
        for name, found in columns.values.items()
    }
    return Columns(columns.height, numbers, columns.words, values, uids)


def _places(numbers: Array, known: tuple[int, ...]) -> Array:
    """Return where each number stands among the known ones; -1 for others."""
    found = np.full(len(numbers), -1, np.int32)
    for place, number in enumerate(known):
        found[numbers == number] = place
    same = found.dtype == numbers.dtype and np.array_equal(found, numbers)
    found.setflags(write=numbers.flags.writeable)
    return numbers if same else found  # so that what several processes share stays one


_PLACES: Final[Known[Array]] = Known(_KNOWN_ROWS)


def usable_events(recording: Recording) -> tuple[pl.DataFrame, int]:
    """Return the usable events of one process by start, and how many were left out.

    Columns that hold nothing are left out, and so are those that are the same for a whole process.
    """
    table = cast("pl.DataFrame", pl.from_arrow(_filled(recording.table)))
    usable = table if _is_sound(recording.table) else _sound_rows(table)
    events = usable.with_columns(
        end_ns=pl.col("start_ns") + pl.col("duration_ns"),
        step=pl.max_horizontal("step", pl.lit(-1, pl.Int32)),
        **_repaired(recording, usable.columns),
    )
    events = events.select(
        pl.col(name).cast(kind) for name, kind in EVENT_COLUMNS.items() if name in events.columns
    )
    return _in_order(events), table.height - usable.height


def _filled(table: pa.Table) -> pa.Table:
    """Drop the columns in which every row is null."""
    names = [
        name
        for name in table.column_names
        if name in ALWAYS_READ or table[name].null_count < table.num_rows
    ]
    return table.select(names)


def _is_sound(table: pa.Table) -> bool:
    """Return whether all rows are usable, judged by the extremes."""
    if not table.num_rows:
        return True
    if any(table[name].null_count for name in ALWAYS_SET):
        return False
    start, duration = table["start_ns"].to_numpy(), table["duration_ns"]
    lengths = (duration.drop_null() if duration.null_count else duration).to_numpy()
    return (
        are_sane(start, lengths)
        and all(_words(table[name]) <= {*known} for name, known in KNOWN_WORDS.items())
        and not any(_has_hollow_word(table[name]) for name in WORDS if name in table.column_names)
    )


def are_sane(start: Ints, lengths: Ints) -> bool:
    """Return whether all times are such as can be."""
    first, last = int(start.min()), int(start.max())
    return bool(
        first >= 0
        and last <= LATEST_NS
        and last - first < LONGEST_NS
        and lengths.min(initial=0) >= 0
        and lengths.max(initial=0) <= LONGEST_NS
    )


def _has_hollow_word(column: pa.ChunkedArray[Any]) -> bool:
    """Return whether a dictionary holds nothing as a word, which Arrow allows."""
    chunks = (cast("pa.DictionaryArray[Any, Any]", chunk) for chunk in column.chunks)
    return any(chunk.dictionary.null_count for chunk in chunks)


def _words(column: pa.ChunkedArray[Any]) -> set[str | None]:
    """Return the dictionary of a column, used or not."""
    chunks = (cast("pa.DictionaryArray[Any, Any]", chunk) for chunk in column.chunks)
    return {word for chunk in chunks for word in chunk.dictionary.to_pylist()}


def sound_rows(table: pa.Table) -> Ints:
    """Return which rows of a recording are usable, all columns of which are there."""
    if _is_sound(table):
        return np.arange(table.num_rows)
    frame = cast("pl.DataFrame", pl.from_arrow(table)).with_row_index("row")
    return _sound_rows(frame)["row"].to_numpy().astype(np.int64)


def _sound_rows(table: pl.DataFrame) -> pl.DataFrame:
    usable = table.filter(sane(), pl.all_horizontal(pl.col(ALWAYS_SET).is_not_null()))
    near = (pl.col("start_ns") - pl.col("start_ns").median()).abs() < LONGEST_NS
    return usable.filter(near)


def _repaired(recording: Recording, columns: list[str]) -> dict[str, pl.Expr]:
    """Return what replaces single columns: identifiers for numbers, null for what cannot be."""
    known = {group.index: group.uid for group in recording.side.communicators}
    number = pl.col("communicator")
    repaired = {
        # What all members share, instead of this process's own number for it.
        "communicator": number.replace_strict(
            known, default=None, return_dtype=EVENT_COLUMNS["communicator"]
        ),
        "bytes": pl.when(pl.col("bytes") >= 0).then("bytes"),
        "value": pl.when(pl.col("value").is_finite()).then("value"),
    }
    repaired |= timed_on_device(columns)
    return {name: found for name, found in repaired.items() if name in columns}


def timed_on_device(columns: Collection[str]) -> dict[str, pl.Expr]:
    """Return what replaces times on a device, of the columns that are there: null, or both sane."""
    held = [name for name in _ON_DEVICE if name in columns]
    timed = pl.lit(value=False)
    if len(held) == len(_ON_DEVICE):
        start, length = (pl.col(name) for name in _ON_DEVICE)
        timed = start.is_between(0, LATEST_NS) & length.is_between(0, LONGEST_NS)
    return {name: pl.when(timed).then(name) for name in held}


def _in_order(events: pl.DataFrame) -> pl.DataFrame:
    """Sort by start, outer spans first; as recordings are in order already, look first."""
    later, deeper = pl.col("start_ns").diff(), pl.col("depth").cast(pl.Int32).diff()
    risen = (later > 0) | ((later == 0) & (deeper >= 0))
    if events.select(risen.drop_nulls().all()).item():
        return events
    return events.sort("start_ns", "depth", maintain_order=True)
