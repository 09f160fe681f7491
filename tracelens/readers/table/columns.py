"""Reads the cells of each column: quickly first, then patiently those that are left over.

Cells of any type become whole numbers, nanoseconds and words. Every expression is null where a cell
holds nothing, or something else than what is expected. Text is converted without a
detour over floating point, so that ``1718000000.123456789`` seconds keep all their digits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.model.trace import EVENT_COLUMNS
from tracelens.readers.table.naming import TIMES
from tracelens.schema.vocabulary import MOST_RANKS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Reading = Callable[[pl.Expr], pl.Expr]

    from tracelens.readers.table.naming import Source

_WORDS_FOR_NOTHING: Final = ("", "-", "nan", "nat", "null", "none", "na", "n/a")
_OPAQUE: Final = (pl.Binary, pl.Null, pl.Object)
_UNITS_NS: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000}
_MOMENT: Final = (
    r"^(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:\.\d+)?) ?(?:Z|UTC|([+-]\d\d):?(\d\d)?)?$"
)
_HOUR_NS: Final = 3_600_000_000_000
MAX_NS: Final = 2**62  # ns: sums of two times fit into 64 bits [definition]
_DECIMAL: Final = pl.Decimal(38, 9)
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


def list_distinct_words(column: pl.Series) -> list[str]:
    """Return the different words of a column."""
    words: list[str] = column.drop_nulls().unique().cast(pl.String).to_list()
    return words


def replace_words(column: pl.Series, new_word_by_word: Mapping[str, str | None]) -> pl.Series:
    """Replace every word of a categorical column by another, or by null."""
    words = column.drop_nulls().unique()
    new_words = [new_word_by_word.get(word) for word in words.cast(pl.String)]
    codes = words.to_physical().to_numpy()
    # By code, the index of a new word; the last code, that of rows without a word, has that of null.
    index_by_code = np.full(int(codes.max(initial=0)) + 2, len(new_words), np.int64)
    index_by_code[codes] = np.arange(len(new_words))
    code_of_row = column.to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
    new_column = pl.Series(column.name, [*new_words, None], dtype=pl.Categorical)
    return new_column.gather(index_by_code[code_of_row])


def is_text(dtype: pl.DataType) -> bool:
    """Return True if a column holds words."""
    return dtype == pl.String or isinstance(dtype, (pl.Categorical, pl.Enum))


def is_opaque(dtype: pl.DataType) -> bool:
    """Return True if a column's cells have no text: lists, bytes, dates that may be beyond any year."""
    return dtype.is_nested() or dtype.is_temporal() or any(dtype == odd for odd in _OPAQUE)


def is_absent(text: pl.Expr) -> pl.Expr:
    """Return True for texts that are one of the spellings of nothing."""
    return text.str.strip_chars().str.to_lowercase().is_in(_WORDS_FOR_NOTHING)


def to_whole_number(cell: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Return a cell as a whole number."""
    if dtype.is_integer() or is_text(dtype):
        return cell.cast(pl.Int64, strict=False)
    if dtype.is_float() or dtype.is_decimal():
        number = cell.cast(pl.Float64)
        return pl.when(number == number.round()).then(_scale_float(number, factor=1))
    return pl.lit(None, pl.Int64)


def to_nanoseconds(cell: pl.Expr, dtype: pl.DataType, unit_ns: int) -> pl.Expr:
    """Return a cell as nanoseconds: numbers are in `unit_ns`, moments since 1970."""
    if isinstance(dtype, (pl.Datetime, pl.Duration)):
        return _scale(cell.to_physical(), _UNITS_NS[dtype.time_unit])
    if dtype.is_integer():
        return _scale(cell.cast(pl.Int64, strict=False), unit_ns)
    if dtype.is_float():
        return _scale_float(cell.cast(pl.Float64), factor=unit_ns)
    if is_text(dtype) or dtype.is_decimal():
        return _scale(cell.cast(_DECIMAL, strict=False), unit_ns).cast(pl.Int64, strict=False)
    return pl.lit(None, pl.Int64)


def parse_moment_ns(text: pl.Expr) -> pl.Expr:
    """Read ISO 8601 as nanoseconds since 1970; without an offset it is taken as UTC."""
    date_and_time = pl.concat_str(
        text.str.extract(_MOMENT, 1), pl.lit("T"), text.str.extract(_MOMENT, 2)
    ).str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="ns", strict=False)
    hours = text.str.extract(_MOMENT, 3)
    sign = pl.when(hours.str.starts_with("-")).then(-1).otherwise(1)
    minutes = text.str.extract(_MOMENT, 4).cast(pl.Int64).fill_null(0) * sign
    offset_ns = hours.cast(pl.Int64).fill_null(0) * _HOUR_NS + minutes * (_HOUR_NS // 60)
    return date_and_time.dt.epoch("ns") - offset_ns


def is_moment(text: str) -> bool:
    """Return True if a text is a date and time rather than a number."""
    return pl.select(parse_moment_ns(pl.lit(text.strip()))).item() is not None


def _scale(number: pl.Expr, factor: int) -> pl.Expr:
    """Multiply, where 64 bits hold the product."""
    limit = MAX_NS // factor
    return pl.when(number.is_between(-limit, limit)).then(number) * factor


def _scale_float(number: pl.Expr, *, factor: int) -> pl.Expr:
    scaled = (number * factor).round()
    return pl.when(scaled.abs() < MAX_NS).then(scaled).cast(pl.Int64, strict=False)


@dataclass(frozen=True)
class Column:
    """One column of the table, and how its cells are read."""

    our_name: str
    their_name: str
    expected: str  # what its cells hold, in sentences
    value: pl.Expr  # of its cells, null where it cannot be read
    parse_text: Reading  # of the text of such cells
    # True for such a text if it says that the column does not apply.
    is_nothing: Reading = field(default=lambda _: pl.lit(value=False))
    has_moments: bool = False  # its times are dates


def describe_column(
    our_name: str, source: Source, dtype: pl.DataType, *, is_iso_text: bool
) -> Column:
    """Return the readings of one column of a type; `is_iso_text`: its text is dates."""
    if our_name in TIMES:
        return _time_column(our_name, source, dtype, is_iso_text=is_iso_text)
    if our_name in _WORDS:
        return _word_column(our_name, source, dtype)
    if our_name == "value":
        return _value_column(source, dtype)
    return _count_column(our_name, source, dtype)


def _time_column(our_name: str, source: Source, dtype: pl.DataType, *, is_iso_text: bool) -> Column:
    """Describe a column of times in ns; a begin may be -1, an end or a duration of -1 does not apply.

    `is_iso_text`: its cells are dates as texts (ISO 8601), not numbers.
    """
    cell, unit_ns = pl.col(source.column_name), source.unit_ns or 1
    value = parse_moment_ns(cell) if is_iso_text else to_nanoseconds(cell, dtype, unit_ns)
    has_moments = is_iso_text or isinstance(dtype, pl.Datetime)

    def parse_text(text: pl.Expr) -> pl.Expr:
        return parse_moment_ns(text) if is_iso_text else to_nanoseconds(text, _TEXT, unit_ns)

    if our_name == "start":
        return Column(
            our_name, source.column_name, "a time", value, parse_text, has_moments=has_moments
        )
    if dtype.is_numeric() or is_text(dtype):
        value = pl.when(value.ne_missing(-unit_ns)).then(value)
    return Column(
        our_name,
        source.column_name,
        "a time",
        value,
        parse_text,
        is_nothing=lambda text: text.cast(_FLOAT, strict=False) == -1,
        has_moments=has_moments,
    )


def _word_column(our_name: str, source: Source, dtype: pl.DataType) -> Column:
    """Describe a column of words; no text is left to be read a second time."""
    cell = pl.col(source.column_name)
    if dtype.is_float():  # whole numbers, as they are where a gap made them floats
        cell = cell.cast(pl.Int64, strict=False)
    if is_opaque(dtype):
        cell = pl.lit(None, _TEXT)
    value = cell.cast(pl.String).cast(_WORD)
    return Column(our_name, source.column_name, "a word", value, lambda _: pl.lit(None, _WORD))


def _value_column(source: Source, dtype: pl.DataType) -> Column:
    """Describe a column of numbers of any kind; NaN does not apply."""
    number = pl.col(source.column_name).cast(_FLOAT, strict=False)
    value = number if dtype.is_numeric() or is_text(dtype) else pl.lit(None, _FLOAT)

    def parse_text(text: pl.Expr) -> pl.Expr:
        return text.cast(_FLOAT, strict=False).fill_nan(None)

    return Column("value", source.column_name, "a number", value.fill_nan(None), parse_text)


def _count_column(our_name: str, source: Source, dtype: pl.DataType) -> Column:
    """Describe a column of whole numbers from 0, below the limit that some have."""
    our_dtype, limit = EVENT_COLUMNS.get(our_name, _COUNT), _LIMITS.get(our_name)

    def in_range(number: pl.Expr) -> pl.Expr:
        fits = (number >= 0) & (number < limit) if limit else number >= 0
        return pl.when(fits).then(number.cast(our_dtype, strict=False))

    def parse_text(text: pl.Expr) -> pl.Expr:
        number = to_whole_number(text.cast(_FLOAT, strict=False), _FLOAT)
        return in_range(pl.coalesce(to_whole_number(text, _TEXT), number))

    return Column(
        our_name,
        source.column_name,
        "a whole number",
        in_range(to_whole_number(pl.col(source.column_name), dtype)),
        parse_text,
        is_nothing=lambda text: text.cast(_FLOAT, strict=False) < 0,
    )
