"""Values out of JSON that other programs wrote: of the type that a reader needs, or none."""

from __future__ import annotations

import re
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_NS: Final = 2**61  # ns: begin and length of a span add up to what 64 bits hold [definition]
MOST_US: Final = MOST_NS // 1_000
_PLAIN_TYPES: Final = frozenset({str, int, float, bool, NoneType})
_DECIMAL: Final = re.compile(r"\s*-?[0-9]{1,19}\s*")


def as_object(value: object) -> dict[str, Any]:
    """Return an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def as_objects(value: object) -> Iterator[dict[str, Any]]:
    """Return the objects of a list; none for anything else."""
    entries = value if isinstance(value, list) else []
    return (entry for entry in entries if isinstance(entry, dict))


def as_text(value: object, max_characters: int = 256) -> str:
    """Return the begin of a text; an empty one for anything else."""
    return value[:max_characters] if isinstance(value, str) else ""


def as_count(value: object, limit: int = 1 << 63) -> int | None:
    """Return a whole number from 0 to below `limit`; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < limit else None


def as_signed_number(value: object, limit: int) -> int | None:
    """Return a number between -`limit` and `limit` without its fraction; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if -limit < value < limit else None


def as_number(value: object, limit: int = MOST_NS) -> int | None:
    """Return a number from 0 to below `limit` without its fraction; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < limit else None


def convert_us_to_ns(value: object) -> int | None:
    """Return a time in microseconds as nanoseconds; None for anything else, or beyond all times."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return round(value * 1_000) if -MOST_NS < value * 1_000 < MOST_NS else None


def unquote_number(value: object) -> object:
    """Return the number that a text spells in decimal digits; any other value as it is."""
    return int(value) if isinstance(value, str) and _DECIMAL.fullmatch(value) else value


def make_column(name: str, values: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    """Return values as a column; what is no text or number, or not of its type, is null.

    Polars would try to convert lists, which takes minutes and gigabytes for deeply nested ones.
    """
    if not _PLAIN_TYPES.issuperset(map(type, values)):
        values = [value if type(value) in _PLAIN_TYPES else None for value in values]
    return pl.Series(name, values, dtype=dtype, strict=False)
