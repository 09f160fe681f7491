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
    describe_column,
    is_absent,
    is_moment,
    is_opaque,
    is_text,
    list_distinct_words,
    replace_words,
)
from tracelens.readers.table.naming import TIMES, map_option
from tracelens.schema.rules import missing_reason, unreadable_reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.readers.table.columns import Column
    from tracelens.readers.table.naming import Plan, Source

_UNREAD: Final = "{}!"  # a column of texts that could not be read, beside ours
_REASON: Final = "why it is left out"


@dataclass(frozen=True, eq=False)
class Cells:
    """The usable rows of a table, and what was left out."""

    rows: pl.DataFrame  # those of our columns that the table has, and `start_ns` and `end_ns`
    has_dates: bool  # times are dates rather than numbers
    unusable_by_reason: dict[str, int]  # numbers of rows
    notes: tuple[Note, ...]


def read_cells(table: pl.LazyFrame, plan: Plan, table_name: str) -> Cells:
    """Read the columns of `plan`, one row per usable row of the table.

    Raises:
        EmptyTrace: there is no row.
        UnusableInput: no row is usable, or a time's unit is unknown.
    """
    schema = table.collect_schema()
    iso_columns = [
        source.column_name
        for our_name, source in plan.source_by_our_name.items()
        if our_name in TIMES and _holds_iso_dates(table, schema, source)
    ]
    sources, notes = _decide_units(table, schema, plan.source_by_our_name, iso_columns, table_name)
    columns = []
    for our_name, source in sources.items():
        dtype, is_iso_text = schema[source.column_name], source.column_name in iso_columns
        columns.append(describe_column(our_name, source, dtype, is_iso_text=is_iso_text))
    rows = table.select(
        *(column.value.alias(column.our_name) for column in columns),
        *(_unread_text(column, schema[column.their_name]) for column in columns),
    ).collect(engine="streaming")
    if rows.is_empty():
        raise EmptyTrace(f"{table_name} has columns but not one row: expected one row a span.")
    for column in columns:
        rows, column_notes = _read_texts(rows, column)
        notes += column_notes
    usable_rows, unusable_by_reason = _drop_unusable(rows)
    if usable_rows.is_empty():
        reasons = [note.sentence for note in notes if note.kind == "unreadable"]
        reason = reasons[0] if reasons else "required cells are empty."
        raise UnusableInput(f"In {table_name} no row is usable: {reason}")
    has_dates = any(column.has_moments for column in columns if column.our_name == "start")
    return Cells(usable_rows, has_dates, unusable_by_reason, tuple(notes))


def _holds_iso_dates(table: pl.LazyFrame, schema: pl.Schema, source: Source) -> bool:
    """Return True if a text column's first cell that holds anything is a date."""
    if schema[source.column_name] != pl.String:
        return False
    cell = pl.col(source.column_name)
    first_cell = table.filter(cell.is_not_null() & ~is_absent(cell)).select(cell).head(1).collect()
    return first_cell.height == 1 and is_moment(first_cell.item())


def _decide_units(
    table: pl.LazyFrame,
    schema: pl.Schema,
    sources: Mapping[str, Source],
    iso_columns: list[str],
    table_name: str,
) -> tuple[dict[str, Source], list[Note]]:
    """Take times whose column names no unit as nanoseconds, and note it; refuse if that is doubtful.

    `sources` are the columns of the table by our names. It is doubtful if another column names a larger
    unit, or times have fractions.
    """
    time_sources = {our_name: source for our_name, source in sources.items() if our_name in TIMES}
    unitless = {
        our_name: source
        for our_name, source in time_sources.items()
        if source.unit_ns is None
        and (schema[source.column_name].is_numeric() or is_text(schema[source.column_name]))
        and source.column_name not in iso_columns
    }
    if not unitless:
        return dict(sources), []
    columns_with_unit = [s.column_name for s in time_sources.values() if (s.unit_ns or 1) != 1]
    for our_name, source in unitless.items():
        if columns_with_unit or _has_fractions(table, schema, source.column_name):
            doubt = "and holds fractions"
            if columns_with_unit:
                doubt = f"while {quoted(columns_with_unit[0])} does"
            raise UnusableInput(
                f"In {table_name} the column {quoted(source.column_name)} names no unit of time, "
                f"{doubt}: say it with {map_option(source.column_name, f'{our_name}_s')} "
                "(or _ms, _us, _ns)."
            )
    listed = ", ".join(quoted(source.column_name) for source in unitless.values())
    sentence = f"No unit is named for the times in {listed}: they are taken as nanoseconds."
    sources_in_ns = {our_name: replace(source, unit_ns=1) for our_name, source in unitless.items()}
    return dict(sources) | sources_in_ns, [Note(file="", sentence=sentence, kind="table")]


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


def _read_texts(rows: pl.DataFrame, column: Column) -> tuple[pl.DataFrame, list[Note]]:
    """Read the unread cells as text, and note those that are unusable even then.

    Required cells that are unusable stay in the column of unread texts.
    """
    unread_name = _UNREAD.format(column.our_name)
    if rows[column.our_name].dtype == pl.Categorical():
        rows = rows.with_columns(_trim_words(rows[column.our_name]))
    if not rows[unread_name].count():
        return rows.drop(unread_name), []
    text = pl.col(unread_name).str.strip_chars()
    is_empty = (is_absent(text) | column.is_nothing(text)).fill_null(value=False)
    unread_cells = (
        rows.lazy()
        .select(unread_name)
        .with_row_index("row")
        .filter(pl.col(unread_name).is_not_null())
        .with_columns(is_empty=is_empty)
        .with_columns(value=pl.when(~pl.col("is_empty")).then(column.parse_text(text)))
        .with_columns(is_unusable=pl.col("value").is_null() & ~pl.col("is_empty"))
        .collect()
    )
    values = rows[column.our_name].scatter(unread_cells["row"], unread_cells["value"])
    unusable_cells = unread_cells.filter("is_unusable")
    unusable_texts = pl.repeat(None, rows.height, dtype=pl.String, eager=True)
    unusable_texts = unusable_texts.scatter(unusable_cells["row"], unusable_cells[unread_name])
    rows = rows.with_columns(values, unusable_texts.alias(unread_name))
    if unusable_cells.is_empty():
        return rows.drop(unread_name), []
    treatment = "such rows are left out" if column.our_name in NEEDED else "taken as not applicable"
    count = unusable_cells.height
    count_text = "1 cell holds" if count == 1 else f"{count:,} cells hold"
    sentence = (
        f"In column {quoted(column.their_name)} {count_text} something else than {column.expected}, "
        f"first {quoted(unusable_cells[unread_name][0])} in row {unusable_cells['row'][0] + 1}: "
        f"{treatment}."
    )
    return rows, [Note(file="", sentence=sentence, kind="unreadable")]


def _trim_words(column: pl.Series) -> pl.Series:
    """Drop words that mean "not applicable", and blanks around others."""
    words = list_distinct_words(column)
    word = pl.col("word")
    word_table = pl.DataFrame({"word": words}, schema={"word": pl.String})
    are_absent = word_table.select(is_absent(word) | (word == "-1")).to_series()
    trimmed_by_word = {
        spelling: None if is_nothing else spelling.strip()
        for spelling, is_nothing in zip(words, are_absent, strict=True)
    }
    is_unchanged = all(spelling == trimmed for spelling, trimmed in trimmed_by_word.items())
    return column if is_unchanged else replace_words(column, trimmed_by_word)


def _drop_unusable(rows: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return rows with rank, `start_ns` and a sound `end_ns`, and the counts of others by reason."""
    end_ns = pl.col("end") if "end" in rows.columns else pl.col("start") + pl.col("duration")
    unread_names = {name: _UNREAD.format(name) for name in NEEDED}
    reasons = [
        pl.when(pl.col(unread_name).is_not_null()).then(pl.lit(unreadable_reason(name)))
        for name, unread_name in unread_names.items()
        if unread_name in rows.columns
    ]
    reasons += [
        pl.when(pl.col(name).is_null()).then(pl.lit(missing_reason(name)))
        for name in ("rank", "start")
    ]
    first_reason = pl.coalesce(reasons).alias(_REASON)
    judged_rows = rows.with_columns(first_reason, start_ns="start", end_ns=end_ns)
    consumed_columns = [name for name in rows.columns if name.endswith("!") or name in TIMES]
    usable_rows = judged_rows.filter(pl.col(_REASON).is_null()).drop(_REASON, *consumed_columns)
    return usable_rows, count_reasons(judged_rows[_REASON])
