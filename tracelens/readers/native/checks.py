"""What of a recording is believed: links and side tables are refused, rows dropped and counted.

Files that the recorder wrote are sound and in order: that is looked up in a few extremes, and rows
are only judged one by one, or sorted, where it is not so.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, get_type_hints

import polars as pl

from tracelens.errors import NotATrace
from tracelens.model.fmt import shown_name
from tracelens.model.trace import EVENT_COLUMNS
from tracelens.readers.base import LATEST_NS, LONGEST_NS, sane
from tracelens.schema.arrow import EVENT_SCHEMA
from tracelens.schema.side import ClockReading, Communicator, Kept, Past, Process, Retention, Thread
from tracelens.schema.vocabulary import EVENT_TYPES, MOST_RANKS, ROLES, STATUSES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    import pyarrow as pa

    from tracelens.readers.native.arrow_file import Recording
    from tracelens.schema.side import SideTables

_BEYOND: Final = 2**63  # of 64 bits
_SMALL: Final = 2**31  # what the trace's columns hold; all else has 64 bits
_LIMITS: Final[dict[str, int]] = {  # exclusive
    "Process.rank": MOST_RANKS,
    "Process.world": MOST_RANKS + 1,
    "Process.local_rank": MOST_RANKS,
    "Process.shard": MOST_RANKS,
    "Thread.index": 2**16,
    "Communicator.index": _SMALL,
    "Communicator.ranks": MOST_RANKS,
    "ClockReading.peer": _SMALL,
    "ClockReading.device": _SMALL,
    "Thread.device": _SMALL,
}
_MAY_BE_NEGATIVE: Final = ("ClockReading.offset_ns", "ClockReading.wall_ns")
_MAX_TEXT: Final = 10_000
_FEW: Final = 32  # tables of communicators that are known to be sound
_Row: TypeAlias = "Process | Thread | Communicator | ClockReading | Retention | Kept | Past"
_ROWS: Final = (Process, Retention, Thread, Kept, Past, Communicator, ClockReading)
_ON_DEVICE: Final = ("device_start_ns", "device_duration_ns")
_WORDS: Final = {"type": EVENT_TYPES, "status": STATUSES}
_ALWAYS_SET: Final = tuple(column.name for column in EVENT_SCHEMA if not column.nullable)
_NEEDED: Final = ("duration_ns", *_ALWAYS_SET)


def check_inside(path: Path, trace: Path) -> None:
    """Refuse a file or folder of a trace that is, or is reached through, a link to outside of it.

    Raises:
        NotATrace: it is one, or a link that leads nowhere.
    """
    if path.parent == trace and not path.is_symlink():
        return
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise NotATrace("it is a link that leads nowhere") from error
    if not real.is_relative_to(trace.resolve()):
        raise NotATrace(
            f"it is a link out of the trace, to {shown_name(real)}: put the file itself there to have "
            "it read"
        )


def check_no_links(folder: Path) -> None:
    """Refuse a segments folder that is a link or holds one, as the recorder makes none.

    Raises:
        NotATrace: it does.
    """
    if folder.is_symlink():
        raise NotATrace("it is a link, expected a folder")
    for entry in folder.glob("*"):
        if entry.is_symlink():
            raise NotATrace(f"it holds a link, '{shown_name(entry.name)}', expected only files")


def check_side(side: SideTables) -> None:
    """Refuse side tables with values of other types, out of range, or absurdly long.

    Raises:
        NotATrace: naming the first such value.
    """
    rows: list[_Row] = [
        side.process,
        side.retention,
        *side.threads,
        *side.kept,
        *side.past,
    ]
    for row in [*rows, *side.clocks]:
        _check_row(row)
    _check_communicators(_Identity(side.communicators))
    if side.process.role not in ROLES:
        raise _wrong("role", side.process.role)
    for reason, count in [*side.dropped.items(), *side.thinned.items()]:
        if not _fits(0, _BEYOND, count):
            raise _wrong(str(reason), count)


class _Identity:
    """A table that is equal to itself alone; files with the same text of a table share it."""

    def __init__(self, rows: tuple[Communicator, ...]) -> None:
        self.rows = rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.rows is self.rows

    def __hash__(self) -> int:
        return id(self.rows)


@lru_cache(_FEW)
def _check_communicators(table: _Identity) -> None:
    for row in table.rows:
        _check_row(row)


def _check_row(row: _Row) -> None:
    for name, is_good in _CHECKS[type(row)]:
        value = getattr(row, name)
        if not is_good(value):
            raise _wrong(f"{type(row).__name__}.{name}", value)


def _check_of(name: str, kind: str) -> Callable[[Any], bool]:
    """Return what tells good values, by the text of their type: ``int | None``, ``list[int]``."""
    if kind.startswith("dict"):
        good: Callable[[Any], bool] = _is_dict
    elif kind.startswith("list"):
        good = partial(_all_fit, *_range_of(name))
    elif "bool" in kind:
        good = _is_bool
    elif "int" in kind:
        good = partial(_fits, *_range_of(name))
    else:
        good = _is_text
    return partial(_is_none_or, good) if "None" in kind else good


def _range_of(name: str) -> tuple[int, int]:
    limit = _LIMITS.get(name, _BEYOND)
    return (-limit if name in _MAY_BE_NEGATIVE else 0), limit


def _is_none_or(good: Callable[[Any], bool], value: Any) -> bool:
    return value is None or good(value)


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    """Return whether it is a text that can be encoded: JSON can spell lone surrogates, which cannot."""
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _all_fit(least: int, limit: int, values: Any) -> bool:
    """Check a list, which may name thousands of ranks, by its extremes."""
    return (
        isinstance(values, list)
        and {*map(type, values)} <= {int}
        and least <= min(values, default=least)
        and max(values, default=least) < limit
    )


def _fits(least: int, limit: int, value: Any) -> bool:
    return type(value) is int and least <= value < limit


def _wrong(name: str, value: Any) -> NotATrace:
    return NotATrace(f"its TraceLens metadata is damaged ({name} is {value!r:.100})")


def usable_events(recording: Recording) -> tuple[pl.DataFrame, int]:
    """Return the usable events of one process by start, and how many were left out.

    Columns that hold nothing are left out, and so are those that are the same for a whole process.
    """
    table = cast("pl.DataFrame", pl.from_arrow(_filled(recording.table)))
    usable = table if _is_sound(table, recording.table) else _sound_rows(table)
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
        if name in _NEEDED or table[name].null_count < table.num_rows
    ]
    return table.select(names)


def _is_sound(table: pl.DataFrame, recorded: pa.Table) -> bool:
    """Return whether all rows are usable, judged by the extremes."""
    if not table.height:
        return True
    start, duration = pl.col("start_ns"), pl.col("duration_ns")
    in_range = table.select(
        pl.all_horizontal(pl.col(_ALWAYS_SET).null_count() == 0)
        & (start.min() >= 0)
        & (start.max() <= LATEST_NS)
        & (start.max() - start.min() < LONGEST_NS)
        & (duration.min() >= 0).fill_null(value=True)
        & (duration.max() <= LONGEST_NS).fill_null(value=True)
    ).item()
    return bool(in_range) and all(
        _words(recorded[name]) <= {*known} for name, known in _WORDS.items()
    )


def _words(column: pa.ChunkedArray[Any]) -> set[str | None]:
    """Return the dictionary of a column, used or not."""
    chunks = (cast("pa.DictionaryArray[Any, Any]", chunk) for chunk in column.chunks)
    return {word for chunk in chunks for word in chunk.dictionary.to_pylist()}


def _sound_rows(table: pl.DataFrame) -> pl.DataFrame:
    usable = table.filter(sane(), pl.all_horizontal(pl.col(_ALWAYS_SET).is_not_null()))
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


# What tells good values of each field of a row of side tables.
_CHECKS: Final[dict[type, tuple[tuple[str, Callable[[Any], bool]], ...]]] = {
    row: tuple(
        (part.name, _check_of(f"{row.__name__}.{part.name}", str(get_type_hints(row)[part.name])))
        for part in fields(row)
    )
    for row in _ROWS
}
