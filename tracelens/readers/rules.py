"""Holds frames of events to the rules of the schema: which rows are left out and why, which cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.schema.rules import (
    LONGEST_NS,
    NEGATIVE,
    RULES,
    far_reason,
    missing_reason,
    out_of_range_reason,
    unknown_word_reason,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from tracelens.schema.rules import Rule

_DEVICE_TIMES: Final = ("device_start_ns", "device_duration_ns")


def find_reason_left_out(columns: Collection[str], process_columns: Sequence[str] = ()) -> pl.Expr:
    """Return why each row is left out, null where it stays: the first rule that it breaks.

    Args:
        columns: Those of the frame, `start_ns` among them.
        process_columns: The columns that identify a process, if rows are of several.
    """
    broken_rule = pl.coalesce(
        pl.when(breaks).then(pl.lit(reason))
        for name, rule in RULES.items()
        if name in columns
        for breaks, reason in _rows_that_break(name, rule)
    )
    median_start_ns = pl.when(broken_rule.is_null()).then("start_ns").median()
    if process_columns:
        median_start_ns = median_start_ns.over(process_columns)
    is_far = (pl.col("start_ns") - median_start_ns).abs() >= LONGEST_NS
    return pl.coalesce(broken_rule, pl.when(is_far).then(pl.lit(far_reason("start_ns"))))


def _rows_that_break(name: str, rule: Rule) -> Iterator[tuple[pl.Expr, str]]:
    """Yield tests of rows by a column, each with the reason for which they are left out."""
    cell = pl.col(name)
    if not rule.is_nullable:
        yield cell.is_null(), missing_reason(name)
    if not rule.drops_row:
        return
    if rule.allowed_words:
        yield ~cell.cast(pl.String).is_in(rule.allowed_words), unknown_word_reason(name)
    if name == "duration_ns":
        yield cell < 0, NEGATIVE
    if rule.minimum is not None and rule.maximum is not None:
        yield ~cell.is_between(rule.minimum, rule.maximum), out_of_range_reason(name)


def count_reasons(reasons: pl.Series) -> dict[str, int]:
    """Count rows that are left out, by reason."""
    if reasons.null_count() == len(reasons):
        return {}
    return dict(reasons.drop_nulls().value_counts().sort(reasons.name).iter_rows())


def hold_to_range(dtypes: Mapping[str, pl.DataType]) -> dict[str, pl.Expr]:
    """Return replacements of columns whose values may break a rule that costs the cell alone, by name.

    Of times on a device, both are null unless both are in range.
    """
    replacements = {
        name: pl.when(breaks)
        .then(None if rule.is_nullable else rule.minimum)
        .otherwise(pl.col(name))
        for name, rule in RULES.items()
        if name in dtypes and (breaks := _cells_that_break(name, rule, dtypes[name])) is not None
    }
    time_columns = [name for name in _DEVICE_TIMES if name in dtypes]
    are_both_in_range = pl.lit(value=False)
    if len(time_columns) == len(_DEVICE_TIMES):
        are_both_in_range = pl.all_horizontal(
            pl.col(name).is_between(RULES[name].minimum, RULES[name].maximum)
            for name in time_columns
        )
    return replacements | {name: pl.when(are_both_in_range).then(name) for name in time_columns}


def _cells_that_break(name: str, rule: Rule, dtype: pl.DataType) -> pl.Expr | None:
    """Return a test for cells that break a rule; None if no value of this type can."""
    if rule.drops_row or not dtype.is_numeric():
        return None
    if rule.must_be_finite:
        return ~pl.col(name).is_finite()
    if rule.maximum is not None:
        return ~pl.col(name).is_between(rule.minimum or 0, rule.maximum)
    if rule.minimum is None or dtype.is_unsigned_integer():
        return None
    return pl.col(name) < rule.minimum
