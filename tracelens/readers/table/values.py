"""Turns a table's cells into whole numbers, nanoseconds and words, whatever type they have.

Every expression is null where a cell holds nothing (empty, null, NaN) and where it holds something else
than what is expected; `given` tells the two apart. Text is converted without a detour over floating
point, so that ``1718000000.123456789`` seconds keep all their digits.
"""

from __future__ import annotations

from typing import Final

import polars as pl

__all__ = ["given", "is_moment", "nanoseconds", "whole", "word"]

ABSENT: Final = ("", "-", "nan", "nat", "null", "none", "na", "n/a")
_NUMBER: Final = r"^([+-]?)(\d*)(?:\.(\d*))?$"
_MOMENT: Final = (
    r"^(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:\.\d+)?) ?(?:Z|UTC|([+-]\d\d):?(\d\d)?)?$"
)
_HOUR_NS: Final = 3_600_000_000_000
_LARGEST: Final = 2.0**62


def given(column: str, kind: pl.DataType) -> pl.Expr:
    """Say whether a cell holds anything."""
    cell = pl.col(column)
    if kind.is_float():
        return cell.is_not_null() & cell.is_not_nan()
    if _is_text(kind):
        return cell.is_not_null() & ~_text(column).str.to_lowercase().is_in(ABSENT)
    return cell.is_not_null()


def word(column: str, kind: pl.DataType) -> pl.Expr:
    """Return a cell as a word; -1 does not apply."""
    if kind.is_nested() or kind == pl.Binary:
        return pl.lit(None, pl.String)
    text = pl.col(column).cast(pl.Int64, strict=False) if kind.is_float() else pl.col(column)
    found = text.cast(pl.String).str.strip_chars()
    applies = given(column, kind) & (found != "-1")
    return pl.when(applies).then(found)


def whole(column: str, kind: pl.DataType) -> pl.Expr:
    """Return a cell as a whole number."""
    if kind.is_integer():
        return pl.col(column).cast(pl.Int64, strict=False)
    if kind.is_float() or kind.is_decimal():
        return _from_float(pl.col(column).cast(pl.Float64), 1, exact=True)
    if _is_text(kind):
        text = _text(column)
        return pl.coalesce(
            text.cast(pl.Int64, strict=False),
            _from_float(text.cast(pl.Float64, strict=False), 1, exact=True),
        )
    return pl.lit(None, pl.Int64)


def nanoseconds(column: str, kind: pl.DataType, unit_ns: int, *, iso: bool = False) -> pl.Expr:
    """Return a cell as nanoseconds: numbers are in `unit_ns`, moments since 1970 (UTC)."""
    cell = pl.col(column)
    if isinstance(kind, pl.Datetime):
        return cell.dt.epoch("ns")
    if isinstance(kind, pl.Duration):
        return cell.dt.total_nanoseconds()
    if kind.is_integer():
        number = cell.cast(pl.Int64, strict=False)
        return pl.when(number.abs() < int(_LARGEST) // unit_ns).then(number * unit_ns)
    if kind.is_float() or kind.is_decimal():
        return _from_float(cell.cast(pl.Float64), unit_ns)
    if _is_text(kind):
        return _moment(_text(column)) if iso else _from_text(_text(column), unit_ns)
    return pl.lit(None, pl.Int64)


def is_moment(text: str) -> bool:
    """Say whether a text is a date and time rather than a number."""
    return pl.select(_moment(pl.lit(text))).item() is not None


def _is_text(kind: pl.DataType) -> bool:
    return kind == pl.String or isinstance(kind, (pl.Categorical, pl.Enum))


def _text(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.String).str.strip_chars()


def _from_float(number: pl.Expr, unit_ns: int, *, exact: bool = False) -> pl.Expr:
    """Round to whole units; `exact` refuses fractions. What 64 bits do not hold is refused."""
    scaled = number * unit_ns
    sound = scaled.is_finite() & (scaled.abs() < _LARGEST)
    if exact:
        sound &= scaled == scaled.round()
    return pl.when(sound).then(scaled.round()).cast(pl.Int64, strict=False)


def _from_text(text: pl.Expr, unit_ns: int) -> pl.Expr:
    """Read decimal digits exactly; other spellings of numbers (1e9) by way of a float."""
    digits = len(str(unit_ns)) - 1
    before, after = text.str.extract(_NUMBER, 2), text.str.extract(_NUMBER, 3).fill_null("")
    fraction = after.str.pad_end(digits, "0").str.slice(0, digits)
    spelt = pl.concat_str(pl.when(before == "").then(pl.lit("0")).otherwise(before), fraction)
    plain = text.str.contains(_NUMBER) & text.str.contains(r"\d")
    negative = text.str.starts_with("-")
    size = pl.when(plain).then(spelt).cast(pl.Int64, strict=False)
    return pl.coalesce(
        pl.when(negative).then(-size).otherwise(size),
        _from_float(text.cast(pl.Float64, strict=False), unit_ns),
    )


def _moment(text: pl.Expr) -> pl.Expr:
    """Read ISO 8601; without an offset it is taken as UTC."""
    spelt = pl.concat_str(
        text.str.extract(_MOMENT, 1), pl.lit("T"), text.str.extract(_MOMENT, 2)
    ).str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="ns", strict=False)
    hours = text.str.extract(_MOMENT, 3)
    behind = pl.when(hours.str.starts_with("-")).then(-1).otherwise(1)
    minutes = text.str.extract(_MOMENT, 4).cast(pl.Int64).fill_null(0) * behind
    offset = hours.cast(pl.Int64).fill_null(0) * _HOUR_NS + minutes * (_HOUR_NS // 60)
    return spelt.dt.epoch("ns") - offset
