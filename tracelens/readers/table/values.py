"""Turns a table's cells into whole numbers and nanoseconds, whatever type they have.

Every expression is null where a cell holds nothing, and where it holds something else than what is
expected. Text is converted without a detour over floating point, so that ``1718000000.123456789``
seconds keep all their digits.
"""

from __future__ import annotations

from typing import Final

import polars as pl

__all__ = ["is_absent", "is_moment", "is_opaque", "is_text", "moment", "nanoseconds", "whole"]

_ABSENT: Final = ("", "-", "nan", "nat", "null", "none", "na", "n/a")
_OPAQUE: Final = (pl.Binary, pl.Duration, pl.Null, pl.Object)
_MOMENT: Final = (
    r"^(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:\.\d+)?) ?(?:Z|UTC|([+-]\d\d):?(\d\d)?)?$"
)
_HOUR_NS: Final = 3_600_000_000_000
_LARGEST: Final = 2**62
_EXACT: Final = pl.Decimal(38, 9)


def is_text(kind: pl.DataType) -> bool:
    """Say whether a column holds words."""
    return kind == pl.String or isinstance(kind, (pl.Categorical, pl.Enum))


def is_opaque(kind: pl.DataType) -> bool:
    """Say whether a column's cells have no text: lists, bytes and the like."""
    return kind.is_nested() or any(kind == odd for odd in _OPAQUE)


def is_absent(text: pl.Expr) -> pl.Expr:
    """Say whether a text is one of the spellings of nothing."""
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
    if isinstance(kind, pl.Datetime):
        return cell.dt.epoch("ns")
    if isinstance(kind, pl.Duration):
        return cell.dt.total_nanoseconds()
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
    """Say whether a text is a date and time rather than a number."""
    return pl.select(moment(pl.lit(text.strip()))).item() is not None


def _scaled(number: pl.Expr, unit_ns: int) -> pl.Expr:
    """Multiply, where 64 bits hold the product."""
    limit = _LARGEST // unit_ns
    return pl.when(number.is_between(-limit, limit)).then(number) * unit_ns


def _from_float(number: pl.Expr, unit_ns: int) -> pl.Expr:
    scaled = (number * unit_ns).round()
    return pl.when(scaled.abs() < _LARGEST).then(scaled).cast(pl.Int64, strict=False)
