"""Holds frames of events to the rules of the schema: which rows are left out and why, which cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.schema.rules import (
    LONGEST_NS,
    NEGATIVE,
    RULES,
    far,
    lacking,
    out_of_range,
    unknown,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from tracelens.schema.rules import Rule

__all__ = ["counted", "held_to_range", "reason", "timed_on_device"]

_ON_DEVICE: Final = ("device_start_ns", "device_duration_ns")


def reason(columns: Collection[str], per: Sequence[str] = ()) -> pl.Expr:
    """Return why each row is left out, null where it stays: the first rule that it breaks.

    Args:
        columns: Those that there are, `start_ns` among them.
        per: The columns that identify a process, if rows are of several.
    """
    held = ((name, rule) for name, rule in RULES.items() if name in columns)
    broken = pl.coalesce(
        pl.when(breaks).then(pl.lit(why)) for name, rule in held for breaks, why in _of(name, rule)
    )
    middle = pl.when(broken.is_null()).then("start_ns").median()
    lies_far = (pl.col("start_ns") - (middle.over(per) if per else middle)).abs() >= LONGEST_NS
    return pl.coalesce(broken, pl.when(lies_far).then(pl.lit(far("start_ns"))))


def _of(name: str, rule: Rule) -> Iterator[tuple[pl.Expr, str]]:
    cell = pl.col(name)
    if not rule.nullable:
        yield cell.is_null(), lacking(name)
    if not rule.drops:
        return
    if rule.words:
        yield ~cell.cast(pl.String).is_in(rule.words), unknown(name)
    if name == "duration_ns":
        yield cell < 0, NEGATIVE
    if rule.least is not None and rule.most is not None:
        yield ~cell.is_between(rule.least, rule.most), out_of_range(name)


def counted(reasons: pl.Series) -> dict[str, int]:
    """Count rows that are left out, by reason."""
    if not len(reasons) or reasons.null_count() == len(reasons):
        return {}
    found = reasons.drop_nulls().value_counts().sort(reasons.name)
    return dict(found.iter_rows())


def held_to_range(kinds: Mapping[str, pl.DataType]) -> dict[str, pl.Expr]:
    """Return what replaces columns whose values may break a rule that costs the cell alone."""
    found = {
        name: pl.when(breaks).then(None if rule.nullable else rule.least).otherwise(pl.col(name))
        for name, rule in RULES.items()
        if name in kinds and (breaks := _breaks(name, rule, kinds[name])) is not None
    }
    return found | timed_on_device(kinds)


def _breaks(name: str, rule: Rule, kind: pl.DataType) -> pl.Expr | None:
    """Return which cells break a rule, None if no value of this type can."""
    if rule.drops or not kind.is_numeric():
        return None
    if rule.finite:
        return ~pl.col(name).is_finite()
    if rule.most is not None:
        return ~pl.col(name).is_between(rule.least or 0, rule.most)
    if rule.least is None or kind.is_unsigned_integer():
        return None
    return pl.col(name) < rule.least


def timed_on_device(columns: Collection[str]) -> dict[str, pl.Expr]:
    """Return what replaces times on a device, of the columns that are there: null, or both in range."""
    held = [name for name in _ON_DEVICE if name in columns]
    timed = pl.lit(value=False)
    if len(held) == len(_ON_DEVICE):
        timed = pl.all_horizontal(
            pl.col(name).is_between(RULES[name].least, RULES[name].most) for name in held
        )
    return {name: pl.when(timed).then(name) for name in held}
