"""How the cells of each column are read: quickly first, and with more patience what that leaves over.

Cells of any type become whole numbers, nanoseconds and words. Every expression is null where a cell
holds nothing, and where it holds something else than what is expected. Text is converted without a
detour over floating point, so that ``1718000000.123456789`` seconds keep all their digits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.model.trace import EVENT_COLUMNS
from tracelens.readers.table.naming import TIMES
from tracelens.schema.vocabulary import MOST_RANKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.readers.table.naming import Source

__all__ = [
    "NEEDED",
    "Column",
    "describe",
    "distinct_words",
    "is_absent",
    "is_moment",
    "is_opaque",
    "is_text",
    "mapped",
    "moment",
    "nanoseconds",
    "whole",
]
_ABSENT: Final = ("", "-", "nan", "nat", "null", "none", "na", "n/a")
_OPAQUE: Final = (pl.Binary, pl.Null, pl.Object)
_UNITS_NS: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000}
_MOMENT: Final = (
    r"^(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:\.\d+)?) ?(?:Z|UTC|([+-]\d\d):?(\d\d)?)?$"
)
_HOUR_NS: Final = 3_600_000_000_000
_LARGEST: Final = 2**62
_EXACT: Final = pl.Decimal(38, 9)
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


def distinct_words(column: pl.Series) -> list[str]:
    """Return the different words of a column."""
    found: list[str] = column.drop_nulls().unique().cast(pl.String).to_list()
    return found


def mapped(column: pl.Series, meant: Mapping[str, str | None]) -> pl.Series:
    """Replace every word of a categorical column by another, null where there is none."""
    different = column.drop_nulls().unique()
    targets = [meant.get(word) for word in different.cast(pl.String)]
    numbers = different.to_physical().to_numpy()
    row_of = np.full(int(numbers.max(initial=0)) + 2, len(targets), np.int64)  # else: no word
    row_of[numbers] = np.arange(len(targets))
    of_row = column.to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
    table = pl.Series(column.name, [*targets, None], dtype=pl.Categorical)
    return table.gather(row_of[of_row])


def is_text(kind: pl.DataType) -> bool:
    """Return whether a column holds words."""
    return kind == pl.String or isinstance(kind, (pl.Categorical, pl.Enum))


def is_opaque(kind: pl.DataType) -> bool:
    """Return whether a column's cells have no text: lists, bytes, dates that may be beyond any year."""
    return kind.is_nested() or kind.is_temporal() or any(kind == odd for odd in _OPAQUE)


def is_absent(text: pl.Expr) -> pl.Expr:
    """Return whether a text is one of the spellings of nothing."""
    return text.str.strip_chars().str.to_lowercase().is_in(_ABSENT)


def whole(cell: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """Return a cell as a whole number."""
    if kind.is_integer() or is_text(kind):
        return cell.cast(pl.Int64, strict=False)
    if kind.is_float() or kind.is_decimal():
        number = cell.cast(pl.Float64)
        return pl.when(number == number.round()).then(_from_float(number, 1))
    return pl.lit(None, pl.Int64)


def nanoseconds(cell: pl.Expr, kind: pl.DataType, unit_ns: int) -> pl.Expr:
    """Return a cell as nanoseconds: numbers are in `unit_ns`, moments since 1970."""
    if isinstance(kind, (pl.Datetime, pl.Duration)):
        return _scaled(cell.to_physical(), _UNITS_NS[kind.time_unit])
    if kind.is_integer():
        return _scaled(cell.cast(pl.Int64, strict=False), unit_ns)
    if kind.is_float():
        return _from_float(cell.cast(pl.Float64), unit_ns)
    if is_text(kind) or kind.is_decimal():
        number = cell.cast(_EXACT, strict=False)
        return _scaled(number, unit_ns).cast(pl.Int64, strict=False)
    return pl.lit(None, pl.Int64)


def moment(text: pl.Expr) -> pl.Expr:
    """Read ISO 8601 as nanoseconds since 1970; without an offset it is taken as UTC."""
    spelt = pl.concat_str(
        text.str.extract(_MOMENT, 1), pl.lit("T"), text.str.extract(_MOMENT, 2)
    ).str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="ns", strict=False)
    hours = text.str.extract(_MOMENT, 3)
    behind = pl.when(hours.str.starts_with("-")).then(-1).otherwise(1)
    minutes = text.str.extract(_MOMENT, 4).cast(pl.Int64).fill_null(0) * behind
    offset = hours.cast(pl.Int64).fill_null(0) * _HOUR_NS + minutes * (_HOUR_NS // 60)
    return spelt.dt.epoch("ns") - offset


def is_moment(text: str) -> bool:
    """Return whether a text is a date and time rather than a number."""
    return pl.select(moment(pl.lit(text.strip()))).item() is not None


def _scaled(number: pl.Expr, unit_ns: int) -> pl.Expr:
    """Multiply, where 64 bits hold the product."""
    limit = _LARGEST // unit_ns
    return pl.when(number.is_between(-limit, limit)).then(number) * unit_ns


def _from_float(number: pl.Expr, unit_ns: int) -> pl.Expr:
    scaled = (number * unit_ns).round()
    return pl.when(scaled.abs() < _LARGEST).then(scaled).cast(pl.Int64, strict=False)


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
    """Return how to read one column of type `kind`; `iso` = its text is dates."""
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
