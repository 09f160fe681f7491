"""Reads a table's cells, once and in a stream, into columns of our names and types.

Cells that hold something else than their column should are counted and told with an example; a row
without a usable rank, begin and end is left out, any other cell is taken as not applicable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.errors import EmptyTrace, UnusableInput
from tracelens.readers.table.naming import TIMES
from tracelens.readers.table.values import given, is_moment, nanoseconds, whole, word
from tracelens.trace import EVENT_COLUMNS, Note

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.readers.table.naming import Plan, Source

__all__ = ["Cells", "gather"]

_WORDS: Final = ("host", "role", "thread", "kind", "name", "op", "communicator", "algorithm")
_MORE_WORDS: Final = ("status", "clock", "type")
_NEEDED: Final = ("rank", *TIMES)
_SPOILT: Final = "{}!"
_SMALL: Final = 2**31


@dataclass(frozen=True)
class Cells:
    """`frame` has our columns, those that the table has, and `start_ns` and `end_ns`.

    `wall` says that times are dates rather than numbers; `unusable` counts rows left out.
    """

    frame: pl.DataFrame
    wall: bool
    unusable: int
    notes: tuple[Note, ...]


@dataclass(frozen=True)
class _Column:
    """One column of the table, and how its cells are read."""

    ours: str
    theirs: str
    value: pl.Expr
    spoilt: pl.Expr
    expected: str
    moment: bool = False


def gather(table: pl.LazyFrame, plan: Plan, name: str) -> Cells:
    """Read the columns of `plan`.

    Raises:
        EmptyTrace: there is no row.
        UnusableInput: no row is usable, or a time's unit is unknown.
    """
    schema = table.collect_schema()
    sources, notes = _with_units(table, schema, plan.sources, name)
    columns = [_column(table, schema, ours, source) for ours, source in sources.items()]
    frame = table.select(
        *(column.value.alias(column.ours) for column in columns),
        *(column.spoilt.alias(_SPOILT.format(column.ours)) for column in columns),
    ).collect(engine="streaming")
    if frame.is_empty():
        raise EmptyTrace(f"{name} has columns but not one row: expected one row a span.")
    spoilt = [_told(table, frame, column) for column in columns]
    kept = _usable(frame)
    if kept.is_empty():
        reason = next((note.sentence for note in spoilt if note), "required cells are empty.")
        raise UnusableInput(f"In {name} no row is usable: {reason}")
    lost = frame.height - kept.height
    flags = [column for column in kept.columns if column.endswith("!")]
    return Cells(
        frame=kept.drop(*flags, "start", "end", "duration", strict=False),
        wall=all(column.moment for column in columns if column.ours == "start"),
        unusable=lost,
        notes=(*notes, *(note for note in spoilt if note)),
    )


def _with_units(
    table: pl.LazyFrame, schema: pl.Schema, sources: Mapping[str, Source], name: str
) -> tuple[dict[str, Source], list[Note]]:
    """Decide the unit of times whose column does not name one: whole numbers are nanoseconds."""
    silent = [
        source
        for ours, source in sources.items()
        if ours in TIMES and source.unit_ns is None and _is_number(table, schema, source.column)
    ]
    if not silent:
        return dict(sources), []
    told = [s.column for ours, s in sources.items() if ours in TIMES and s.unit_ns not in {None, 1}]
    for source in silent:
        if told or _has_fractions(table, schema, source.column):
            why = f"while '{told[0]}' does" if told else "and holds fractions"
            ours = next(ours for ours, other in sources.items() if other == source)
            raise UnusableInput(
                f"In {name} the column '{source.column}' names no unit of time, {why}: say it with "
                f"--map {source.column}={ours}_s (or _ms, _us, _ns)."
            )
    listed = ", ".join(f"'{source.column}'" for source in silent)
    sentence = f"No unit is named for the times in {listed}: they are taken as nanoseconds."
    known = {o: replace(s, unit_ns=1) if s in silent else s for o, s in sources.items()}
    return known, [Note(file="", sentence=sentence, kind="table")]


def _column(table: pl.LazyFrame, schema: pl.Schema, ours: str, source: Source) -> _Column:
    theirs, kind = source.column, schema[source.column]
    holds = given(theirs, kind)
    if ours in TIMES:
        iso = kind == pl.String and _is_iso(table, schema, theirs)
        value = nanoseconds(theirs, kind, source.unit_ns or 1, iso=iso)
        if ours != "start":  # a begin may be -1, an end or a length that is -1 does not apply
            holds &= whole(theirs, kind).fill_null(0) != -1
            value = pl.when(holds).then(value)
        moment = iso or isinstance(kind, pl.Datetime)
        spoilt = holds & value.is_null()
        return _Column(ours, theirs, value, spoilt, "a time", moment)
    if ours in _WORDS or ours in _MORE_WORDS:
        value = word(theirs, kind)
        spoilt = holds & value.is_null() & (pl.col(theirs).cast(pl.String, strict=False) != "-1")
        return _Column(ours, theirs, value.cast(pl.Categorical), spoilt, "a word")
    if ours == "value":
        value = pl.col(theirs).cast(pl.Float64, strict=False)
        return _Column(ours, theirs, value, holds & value.is_null(), "a number")
    number = whole(theirs, kind)
    fitting = number.cast(EVENT_COLUMNS.get(ours, pl.Int32()), strict=False)
    value = pl.when(number >= 0).then(fitting)
    spoilt = holds & value.is_null() & ~(number < 0).fill_null(value=False)
    return _Column(ours, theirs, value, spoilt, "a whole number")


def _usable(frame: pl.DataFrame) -> pl.DataFrame:
    """Keep rows with rank, begin and a sound end, and compute `start_ns` and `end_ns`."""
    end = pl.col("end") if "end" in frame.columns else pl.col("start") + pl.col("duration")
    flags = [_SPOILT.format(name) for name in _NEEDED if name in frame.columns]
    sound = pl.col("rank").is_not_null() & pl.col("start").is_not_null() & ~pl.any_horizontal(flags)
    return frame.with_columns(start_ns="start", end_ns=end).filter(sound)


def _told(table: pl.LazyFrame, frame: pl.DataFrame, column: _Column) -> Note | None:
    """Say how many cells of a column hold something else, with the first."""
    flag = frame[_SPOILT.format(column.ours)].fill_null(value=False)
    count = int(flag.sum())
    if not count:
        return None
    row = flag.arg_max() or 0
    cell = table.select(column.theirs).slice(row, 1).collect().item()
    fate = "such rows are left out" if column.ours in _NEEDED else "taken as not applicable"
    sentence = (
        f"Column '{column.theirs}' holds {count} times something else than {column.expected}, "
        f"first {str(cell)[:60]!r} in row {row + 1}: {fate}."
    )
    return Note(file="", sentence=sentence, kind="unreadable")


def _is_number(table: pl.LazyFrame, schema: pl.Schema, column: str) -> bool:
    kind = schema[column]
    return kind.is_numeric() or (kind == pl.String and not _is_iso(table, schema, column))


def _is_iso(table: pl.LazyFrame, schema: pl.Schema, column: str) -> bool:
    """Say whether a text column's first cell that holds anything is a date."""
    first = table.filter(given(column, schema[column])).select(column).head(1).collect()
    return first.height == 1 and is_moment(first.item())


def _has_fractions(table: pl.LazyFrame, schema: pl.Schema, column: str) -> bool:
    kind, cell = schema[column], pl.col(column)
    if kind.is_integer():
        return False
    number = cell.cast(pl.Float64, strict=False)
    fractions = (number.is_finite() & (number != number.round())).any()
    return bool(table.select(fractions).collect(engine="streaming").item())
