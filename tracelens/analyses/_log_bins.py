"""Counts durations in bins of equal ratio, each with its longest example: any number is a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PER_DECADE", "spread"]

PER_DECADE: Final = 20


def spread(rows: pl.DataFrame, value: str, by: str, kept: Sequence[str]) -> pl.DataFrame:
    """Count a frame's durations (column `value`, ns) by bin and by the words in the column `by`.

    Returns `by`, from_ns, to_ns, count, and the columns `kept` of the longest of each bin. What is
    shorter than a nanosecond is in the first bin.
    """
    power = pl.col(value).clip(lower_bound=1).log10().mul(PER_DECADE).add(1e-9).floor()
    longest = pl.col(value).arg_max()
    edge = 10.0 ** (pl.col("bin") / PER_DECADE)
    return (
        rows.with_columns(bin=power.cast(pl.Int32))
        .group_by(by, "bin")
        .agg(pl.len().cast(pl.Int64).alias("count"), *(pl.col(name).get(longest) for name in kept))
        .with_columns(from_ns=edge, to_ns=edge * 10.0 ** (1 / PER_DECADE))
        .select(by, "from_ns", "to_ns", "count", *kept)
        .sort(by, "from_ns")
    )
