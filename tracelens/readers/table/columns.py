"""How the cells of each column are read: quickly first, and with more patience what that leaves over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.readers.table.naming import TIMES
from tracelens.readers.table.values import is_opaque, is_text, moment, nanoseconds, whole
from tracelens.schema.vocabulary import MOST_RANKS
from tracelens.trace import EVENT_COLUMNS

if TYPE_CHECKING:
    from tracelens.readers.table.naming import Source

__all__ = ["NEEDED", "Column", "describe"]

NEEDED: Final = ("rank", *TIMES)
_WORDS: Final = (
    *("host", "role", "thread", "kind", "name", "op", "communicator", "algorithm"),
    *("status", "clock", "type"),
)
_WORD: Final = pl.Categorical()
_TEXT: Final = pl.String()
_FLOAT: Final = pl.Float64()
_COUNT: Final = pl.Int32()
_LIMITS: Final = {"rank": MOST_RANKS, "world": MOST_RANKS + 1}  # exclusive
_Reading = Callable[[pl.Expr], pl.Expr]


def _never(_: pl.Expr) -> pl.Expr:
    return pl.lit(value=False)


@dataclass(frozen=True)
class Column:
    """One column of the table.

    `value` reads its cells, null where it cannot; `again` reads the text of what is left over then,
    and `nothing` says of which such text that it does not apply. `expected` is for sentences.
    """

    ours: str
    theirs: str
    expected: str
    value: pl.Expr
    again: _Reading
    nothing: _Reading = field(default=_never)
    moment: bool = False


def describe(ours: str, source: Source, kind: pl.DataType, *, iso: bool) -> Column:
    """Say how to read one column of type `kind`; `iso` = its text is dates."""
    if ours in TIMES:
        return _time(ours, source, kind, iso=iso)
    if ours in _WORDS:
        return _word(ours, source, kind)
    return _value(source, kind) if ours == "value" else _count(ours, source, kind)


def _time(ours: str, source: Source, kind: pl.DataType, *, iso: bool) -> Column:
    """A begin may be -1; an end or a length that is -1 does not apply."""
    cell, unit = pl.col(source.column), source.unit_ns or 1
    value = moment(cell) if iso else nanoseconds(cell, kind, unit)
    dates = iso or isinstance(kind, pl.Datetime)

    def again(text: pl.Expr) -> pl.Expr:
        return moment(text) if iso else nanoseconds(text, _TEXT, unit)

    if ours == "start":
        return Column(ours, source.column, "a time", value, again, moment=dates)
    if kind.is_numeric() or is_text(kind):
        value = pl.when(value.ne_missing(-unit)).then(value)
    return Column(ours, source.column, "a time", value, again, _minus_one, moment=dates)


def _word(ours: str, source: Source, kind: pl.DataType) -> Column:
    cell = pl.col(source.column)
    if kind.is_float():  # whole numbers, as they are where a gap made them floats
        cell = cell.cast(pl.Int64, strict=False)
    if is_opaque(kind):
        cell = pl.lit(None, _TEXT)
    value = cell.cast(pl.String).cast(_WORD)
    return Column(ours, source.column, "a word", value, lambda _: pl.lit(None, _WORD))


def _value(source: Source, kind: pl.DataType) -> Column:
    number = pl.col(source.column).cast(_FLOAT, strict=False)
    value = number if kind.is_numeric() or is_text(kind) else pl.lit(None, _FLOAT)

    def again(text: pl.Expr) -> pl.Expr:
        return text.cast(_FLOAT, strict=False).fill_nan(None)

    return Column("value", source.column, "a number", value.fill_nan(None), again)


def _count(ours: str, source: Source, kind: pl.DataType) -> Column:
    fitting, limit = EVENT_COLUMNS.get(ours, _COUNT), _LIMITS.get(ours)

    def fit(number: pl.Expr) -> pl.Expr:
        fits = (number >= 0) & (number < limit) if limit else number >= 0
        return pl.when(fits).then(number.cast(fitting, strict=False))

    def again(text: pl.Expr) -> pl.Expr:
        number = whole(text.cast(_FLOAT, strict=False), _FLOAT)
        return fit(pl.coalesce(whole(text, _TEXT), number))

    value = fit(whole(pl.col(source.column), kind))
    return Column(ours, source.column, "a whole number", value, again, _negative)


def _minus_one(text: pl.Expr) -> pl.Expr:
    return text.cast(_FLOAT, strict=False) == -1


def _negative(text: pl.Expr) -> pl.Expr:
    return text.cast(_FLOAT, strict=False) < 0
