"""What several steps do with frames: bring them into columns, replace words by others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["fitted", "mapped", "words"]


def fitted(frame: pl.DataFrame, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return exactly `columns`, in order and typed; what the frame does not have is null."""
    return frame.select(
        pl.col(name).cast(kind) if name in frame.columns else pl.lit(None, kind).alias(name)
        for name, kind in columns.items()
    )


def words(column: pl.Series) -> list[str]:
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
