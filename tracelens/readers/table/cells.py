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

_UNREAD: Final = "{}!"  # a column of texts that could not be read, beside ours
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
        describe(our_name, source, schema[source.column], iso=source.column in dates)
        for our_name, source in sources.items()
    ]
    frame = table.select(
        *(column.value.alias(column.our_name) for column in columns),
        *(_unread_text(column, schema[column.their_name]) for column in columns),
    ).collect(engine="streaming")
    if frame.is_empty():
        raise EmptyTrace(f"{name} has columns but not one row: expected one row a span.")
    for column in columns:
        frame, column_notes = _read_texts(frame, column)
        notes += column_notes
    usable, unusable = _drop_unusable(frame)
    if usable.is_empty():
        reason = next(
            (n.sentence for n in notes if n.kind == "unreadable"), "required cells are empty."
        )
        raise UnusableInput(f"In {name} no row is usable: {reason}")
    wall = any(column.moment for column in columns if column.our_name == "start")
    return Cells(usable, wall, unusable, tuple(notes))


def _is_iso(table: pl.LazyFrame, schema: pl.Schema, source: Source) -> bool:
    """Return True if a text column's first cell that holds anything is a date."""
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
    times = {our_name: source for our_name, source in sources.items() if our_name in TIMES}
    unitless = {
        our_name: source
        for our_name, source in times.items()
        if source.unit_ns is None
        and (schema[source.column].is_numeric() or is_text(schema[source.column]))
        and source.column not in dates
    }
    if not unitless:
        return dict(sources), []
    with_units = [source.column for source in times.values() if source.unit_ns not in {None, 1}]
    for our_name, source in unitless.items():
        if with_units or _has_fractions(table, schema, source.column):
            why = f"while {quoted(with_units[0])} does" if with_units else "and holds fractions"
            raise UnusableInput(
                f"In {name} the column {quoted(source.column)} names no unit of time, {why}: say it "
                f"with {map_option(source.column, f'{our_name}_s')} (or _ms, _us, _ns)."
            )
    listed = ", ".join(quoted(source.column) for source in unitless.values())
    sentence = f"No unit is named for the times in {listed}: they are taken as nanoseconds."
    in_ns = {our_name: replace(source, unit_ns=1) for our_name, source in unitless.items()}
    return dict(sources) | in_ns, [Note(file="", sentence=sentence, kind="table")]


def _has_fractions(table: pl.LazyFrame, schema: pl.Schema, column: str) -> bool:
    if schema[column].is_integer():
        return False
    number = pl.col(column).cast(pl.Float64, strict=False)
    has_fraction = (number.is_finite() & (number != number.round())).any()
    return bool(table.select(has_fraction).collect(engine="streaming").item())


def _unread_text(column: Column, dtype: pl.DataType) -> pl.Expr:
    """Return the text of cells that `column.value` could not read."""
    cell = pl.col(column.their_name)
    text = pl.lit(str(dtype)) if is_opaque(dtype) else cell.cast(pl.String, strict=False)
    is_unread = column.value.is_null() & cell.is_not_null()
    return pl.when(is_unread).then(text).alias(_UNREAD.format(column.our_name))


def _read_texts(frame: pl.DataFrame, column: Column) -> tuple[pl.DataFrame, list[Note]]:
    """Read the unread cells as text, and note those that are unusable even then.

    Required cells that are unusable stay in the column of unread texts.
    """
    unread = _UNREAD.format(column.our_name)
    if frame[column.our_name].dtype == pl.Categorical():
        frame = frame.with_columns(_trim_words(frame[column.our_name]))
    if not frame[unread].count():
        return frame.drop(unread), []
    text = pl.col(unread).str.strip_chars()
    is_empty = (is_absent(text) | column.is_nothing(text)).fill_null(value=False)
    cells = (
        frame.lazy()
        .select(unread)
        .with_row_index("row")
        .filter(pl.col(unread).is_not_null())
        .with_columns(is_empty=is_empty)
        .with_columns(value=pl.when(~pl.col("is_empty")).then(column.parse_text(text)))
        .with_columns(unusable=pl.col("value").is_null() & ~pl.col("is_empty"))
        .collect()
    )
    values = frame[column.our_name].scatter(cells["row"], cells["value"])
    unusable = cells.filter("unusable")
    texts = pl.repeat(None, frame.height, dtype=pl.String, eager=True)
    texts = texts.scatter(unusable["row"], unusable[unread])
    frame = frame.with_columns(values, texts.alias(unread))
    if unusable.is_empty():
        return frame.drop(unread), []
    treatment = "such rows are left out" if column.our_name in NEEDED else "taken as not applicable"
    cells_hold = "1 cell holds" if unusable.height == 1 else f"{unusable.height:,} cells hold"
    sentence = (
        f"In column {quoted(column.their_name)} {cells_hold} something else than {column.expected}, "
        f"first {quoted(unusable[unread][0])} in row {unusable['row'][0] + 1}: {treatment}."
    )
    return frame, [Note(file="", sentence=sentence, kind="unreadable")]


def _trim_words(column: pl.Series) -> pl.Series:
    """Drop words that mean "not applicable", and blanks around others."""
    spellings = distinct_words(column)
    plain = pl.Series(spellings, dtype=pl.String)
    absent = plain.to_frame("word").select(is_absent(pl.col("word")) | (pl.col("word") == "-1"))
    trimmed = {
        spelling: None if is_nothing else spelling.strip()
        for spelling, is_nothing in zip(spellings, absent.to_series(), strict=True)
    }
    is_same = all(spelling == result for spelling, result in trimmed.items())
    return column if is_same else mapped(column, trimmed)


def _drop_unusable(frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """Keep rows with rank, begin and a sound end, and compute `start_ns` and `end_ns`."""
    end = pl.col("end") if "end" in frame.columns else pl.col("start") + pl.col("duration")
    reasons = [
        pl.when(pl.col(_UNREAD.format(name)).is_not_null()).then(pl.lit(unreadable(name)))
        for name in NEEDED
        if _UNREAD.format(name) in frame.columns
    ]
    reasons += [
        pl.when(pl.col(name).is_null()).then(pl.lit(missing_reason(name)))
        for name in ("rank", "start")
    ]
    judged = frame.with_columns(pl.coalesce(reasons).alias(_REASON), start_ns="start", end_ns=end)
    usable = judged.filter(pl.col(_REASON).is_null())
    spent = [column for column in usable.columns if column.endswith("!") or column in TIMES]
    return usable.drop(_REASON, *spent), count_reasons(judged[_REASON])
