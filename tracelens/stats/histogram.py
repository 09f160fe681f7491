"""Histograms of durations, in bins that are equally wide as logarithms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# bins: a tenfold duration has as many [policy; one decision in log_histogram, _count_by_bin]
BINS_PER_DECADE: Final = 20
# bins: a duration so close below the next bin is in it, since logarithms are rounded [policy]
ROUNDING_OF_BINS: Final = 1e-9


def log_histogram(
    frames: Iterable[pl.DataFrame], value_column: str, by_column: str, kept_columns: Sequence[str]
) -> pl.DataFrame:
    """Count the durations in frames' column `value_column`, ns, by bin and by the words in `by_column`.

    Returns `by_column`, from_ns, to_ns, count, and the `kept_columns` of the longest of each bin. What
    is shorter than a nanosecond is in the first bin.
    """
    edge = 10.0 ** (pl.col("bin") / BINS_PER_DECADE)
    longest_row = pl.col("most").arg_max()
    return (
        pl.concat([_count_by_bin(rows, value_column, by_column, kept_columns) for rows in frames])
        .group_by(by_column, "bin")
        .agg(pl.col("count").sum(), *(pl.col(name).get(longest_row) for name in kept_columns))
        .with_columns(from_ns=edge, to_ns=edge * 10.0 ** (1 / BINS_PER_DECADE))
        .select(by_column, "from_ns", "to_ns", "count", *kept_columns)
        .sort(by_column, "from_ns")
    )


def _count_by_bin(
    durations: pl.DataFrame, value_column: str, by_column: str, kept_columns: Sequence[str]
) -> pl.DataFrame:
    """Count durations, a row each, in column `value_column`, ns, by bin and word; keep the longest."""
    log_value = pl.col(value_column).clip(lower_bound=1).log10()
    bin_number = log_value.mul(BINS_PER_DECADE).add(ROUNDING_OF_BINS).floor()
    longest_row = pl.col(value_column).arg_max()
    return (
        durations.with_columns(bin=bin_number.cast(pl.Int32))
        .group_by(by_column, "bin")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col(value_column).max().alias("most"),
            *(pl.col(name).get(longest_row) for name in kept_columns),
        )
    )
