"""Reads a table's cells, once and in a stream, into columns of our names and types.

Cells that hold something else than their column should are counted and reported with an example; a row
without a usable rank, begin and end is left out, any other cell is taken as not applicable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.errors import EmptyTrace, UnusableInput
from tracelens.model.trace import Note
from tracelens.readers.base import quoted
from tracelens.readers.rules import count_reasons
from tracelens.readers.table.columns import (
    NEEDED,
    describe,
    distinct_words,
    is_absent,
    is_moment,
    is_opaque,
    is_text,
    mapped,
)
from tracelens.readers.table.naming import TIMES, map_option
from tracelens.schema.rules import missing_reason, unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.readers.table.columns import Column
    from tracelens.readers.table.naming import Plan, Source

__all__ = ["Cells", "gather"]

_LEFT_OVER: Final = "{}!"
_ALWAYS: Final = ("rank", "start")
_REASON: Final = "why it is left out"


@dataclass(frozen=True, eq=False)
class Cells:
    """`frame` has our columns, those that the table has, and `start_ns` and `end_ns`.

    `wall` says that times are dates rather than numbers; `unusable` counts rows left out, by reason.
    """

    frame: pl.DataFrame
    wall: bool
    unusable: dict[str, int]
    notes: tuple[Note, ...]


def gather(table: pl.LazyFrame, plan: Plan, name: str) -> Cells:
    """Read the columns of `plan`.

    Raises:
        EmptyTrace: there is no row.
        UnusableInput: no row is usable, or a time's unit is unknown.
    """
    schema = table.collect_schema()
    dates = [s.column for o, s in plan.sources.items() if o in TIMES and _is_iso(table, schema, s)]
    sources, notes = _with_units(table, schema, plan.sources, dates, name)
    columns = [
        describe(ours, source, schema[source.column], iso=source.column in dates)
        for ours, source in sources.items()
    ]
    frame = table.select(
        *(column.value.alias(column.ours) for column in columns),
        *(_left_over(column, schema[column.theirs]) for column in columns),
    ).collect(engine="streaming")
    if frame.is_empty():
        raise EmptyTrace(f"{name} has columns but not one row: expected one row a span.")
    for column in columns:
        frame, note = _read_again(frame, column)
        notes += note
    kept, unusable = _usable(frame)
    if kept.is_empty():
        why = next(
            (n.sentence for n in notes if n.kind == "unreadable"), "required cells are empty."
        )
        raise UnusableInput(f"In {name} no row is usable: {why}")
    wall = any(column.moment for column in columns if column.ours == "start")
    return Cells(kept, wall, unusable, tuple(notes))


def _is_iso(table: pl.LazyFrame, schema: pl.Schema, source: Source) -> bool:
    """Return whether a text column's first cell that holds anything is a date."""
    if schema[source.column] != pl.String:
        return False
    cell = pl.col(source.column)
    first = table.filter(cell.is_not_null() & ~is_absent(cell)).select(cell).head(1).collect()
    return first.height == 1 and is_moment(first.item())


def _with_units(
    table: pl.LazyFrame,
    schema: pl.Schema,
    sources: Mapping[str, Source],
    dates: list[str],
    name: str,
) -> tuple[dict[str, Source], list[Note]]:
    """Decide the unit of times whose column does not name one: whole numbers are nanoseconds."""
    times = {ours: source for ours, source in sources.items() if ours in TIMES}
    silent = {
        ours: source
        for ours, source in times.items()
        if source.unit_ns is None
        and (schema[source.column].is_numeric() or is_text(schema[source.column]))
        and source.column not in dates
    }
    if not silent:
        return dict(sources), []
    with_units = [source.column for source in times.values() if source.unit_ns not in {None, 1}]
    for ours, source in silent.items():
        if with_units or _has_fractions(table, schema, source.column):
            why = f"while {quoted(with_units[0])} does" if with_units else "and holds fractions"
            raise UnusableInput(
                f"In {name} the column {quoted(source.column)} names no unit of time, {why}: say it "
                f"with {map_option(source.column, f'{ours}_s')} (or _ms, _us, _ns)."
            )
    listed = ", ".join(quoted(source.column) for source in silent.values())
    sentence = f"No unit is named for the times in {listed}: they are taken as nanoseconds."
    known = {ours: replace(source, unit_ns=1) for ours, source in silent.items()}
    return dict(sources) | known, [Note(file="", sentence=sentence, kind="table")]


def _has_fractions(table: pl.LazyFrame, schema: pl.Schema, column: str) -> bool:
    if schema[column].is_integer():
        return False
    number = pl.col(column).cast(pl.Float64, strict=False)
    fractions = (number.is_finite() & (number != number.round())).any()
    return bool(table.select(fractions).collect(engine="streaming").item())


def _left_over(column: Column, kind: pl.DataType) -> pl.Expr:
    """Return the text of cells that `column.value` could not read."""
    cell = pl.col(column.theirs)
    text = pl.lit(str(kind)) if is_opaque(kind) else cell.cast(pl.String, strict=False)
    unread = column.value.is_null() & cell.is_not_null()
    return pl.when(unread).then(text).alias(_LEFT_OVER.format(column.ours))


def _read_again(frame: pl.DataFrame, column: Column) -> tuple[pl.DataFrame, list[Note]]:
    """Read the leftover cells as text, and note those that are unusable even then.

    Required cells that are unusable stay in the column of leftovers.
    """
    rest = _LEFT_OVER.format(column.ours)
    if frame[column.ours].dtype == pl.Categorical():
        frame = frame.with_columns(_trimmed(frame[column.ours]))
    if not frame[rest].count():
        return frame.drop(rest), []
    text = pl.col(rest).str.strip_chars()
    cells = (
        frame.lazy()
        .select(rest)
        .with_row_index("row")
        .filter(pl.col(rest).is_not_null())
        .with_columns(holds=~(is_absent(text) | column.nothing(text)).fill_null(value=False))
        .with_columns(found=pl.when("holds").then(column.again(text)))
        .with_columns(unusable=pl.col("found").is_null() & pl.col("holds"))
        .collect()
    )
    values = frame[column.ours].scatter(cells["row"], cells["found"])
    unusable = cells.filter("unusable")
    marks = pl.repeat(None, frame.height, dtype=pl.String, eager=True)
    marks = marks.scatter(unusable["row"], unusable[rest])
    frame = frame.with_columns(values, marks.alias(rest))
    if unusable.is_empty():
        return frame.drop(rest), []
    treatment = "such rows are left out" if column.ours in NEEDED else "taken as not applicable"
    cells_hold = "1 cell holds" if unusable.height == 1 else f"{unusable.height:,} cells hold"
    sentence = (
        f"In column {quoted(column.theirs)} {cells_hold} something else than {column.expected}, first "
        f"{quoted(unusable[rest][0])} in row {unusable['row'][0] + 1}: {treatment}."
    )
    return frame, [Note(file="", sentence=sentence, kind="unreadable")]


def _trimmed(column: pl.Series) -> pl.Series:
    """Drop words that mean "not applicable", and blanks around others."""
    words = distinct_words(column)
    plain = pl.Series(words, dtype=pl.String)
    absent = plain.to_frame("word").select(is_absent(pl.col("word")) | (pl.col("word") == "-1"))
    meant = {
        word: None if nothing else word.strip()
        for word, nothing in zip(words, absent.to_series(), strict=True)
    }
    return column if all(word == found for word, found in meant.items()) else mapped(column, meant)


def _usable(frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """Keep rows with rank, begin and a sound end, and compute `start_ns` and `end_ns`."""
    end = pl.col("end") if "end" in frame.columns else pl.col("start") + pl.col("duration")
    marks = {name: _LEFT_OVER.format(name) for name in NEEDED}
    unread = [
        pl.when(pl.col(mark).is_not_null()).then(pl.lit(unreadable(name)))
        for name, mark in marks.items()
        if mark in frame.columns
    ]
    empty = [pl.when(pl.col(name).is_null()).then(pl.lit(missing_reason(name))) for name in _ALWAYS]
    judged = frame.with_columns(
        pl.coalesce(*unread, *empty).alias(_REASON), start_ns="start", end_ns=end
    )
    kept = judged.filter(pl.col(_REASON).is_null())
    spent = [column for column in kept.columns if column.endswith("!") or column in TIMES]
    return kept.drop(_REASON, *spent), count_reasons(judged[_REASON])
