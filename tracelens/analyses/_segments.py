"""The pieces of all training threads, kept as plain arrays; rows of a frame are made when asked for.

A frame of them is twice as large, and most analyses only need sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.analyses._partition import CATEGORIES

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens.analyses._partition import Flags, Pieces

__all__ = ["SEGMENT_COLUMNS", "Segments"]

# The training thread's time, cut into touching, non-overlapping pieces.
SEGMENT_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "category": pl.Enum(CATEGORIES),
    "name": pl.Categorical(),  # innermost recorded span, null where none
}


@dataclass(frozen=True)
class Segments:
    """Pieces process by process, each with the row of `steps` at which its process begins.

    `steps` holds process, rank and step of every window; `words` the names that pieces may have, which
    they tell by their physical numbers.
    """

    cut: tuple[tuple[Pieces, int], ...]
    steps: pl.DataFrame
    words: pl.Series

    def frame(self) -> pl.DataFrame:
        """Return all pieces, by process and time, in `SEGMENT_COLUMNS`."""
        return self._frame([np.ones(len(pieces.step), np.bool_) for pieces, _ in self.cut])

    def of(self, category: str, steps: npt.NDArray[np.int64]) -> pl.DataFrame:
        """Return the pieces of one category in some steps."""
        wanted = self.steps["step"].is_in(steps.tolist()).to_numpy()
        code = CATEGORIES.index(category)
        return self._frame(
            [
                (pieces.category == code) & wanted[pieces.step + offset]
                for pieces, offset in self.cut
            ]
        )

    def _frame(self, chosen: list[Flags]) -> pl.DataFrame:
        picked = [
            (pieces, offset, np.flatnonzero(flags))
            for (pieces, offset), flags in zip(self.cut, chosen, strict=True)
        ]
        if not picked:
            return pl.DataFrame(schema=SEGMENT_COLUMNS)
        row = np.concatenate([pieces.step[where] + offset for pieces, offset, where in picked])
        return (
            self.steps.select("process", "rank", "step")[row]
            .with_columns(
                start_ns=np.concatenate([pieces.bounds[:-1][where] for pieces, _, where in picked]),
                end_ns=np.concatenate([pieces.bounds[1:][where] for pieces, _, where in picked]),
                category=categories(_joined(picked, "category")),
                name=self.names(_joined(picked, "name")),
            )
            .select(*SEGMENT_COLUMNS)
        )

    def names(self, codes: npt.NDArray[Any]) -> pl.Series:
        """Turn name numbers back into words; below zero into null."""
        if self.words.is_empty():
            return pl.Series([None] * len(codes), dtype=pl.Categorical)
        numbers = self.words.to_physical().to_numpy()
        row_of = np.zeros(int(numbers.max()) + 2, np.uint32)  # the last one stands for -1
        row_of[numbers] = np.arange(len(numbers))
        named = pl.Series(codes >= 0)
        return pl.select(pl.when(named).then(self.words.gather(row_of[codes]))).to_series()


def categories(codes: npt.NDArray[Any]) -> pl.Series:
    """Turn numbers of `CATEGORIES` into words."""
    return pl.Series(CATEGORIES, dtype=pl.Enum(CATEGORIES)).gather(codes)


def _joined(picked: list[tuple[Pieces, int, npt.NDArray[np.intp]]], field: str) -> npt.NDArray[Any]:
    return np.concatenate([getattr(pieces, field)[where] for pieces, _, where in picked])


def spent_before(inside: pl.DataFrame, moments: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return how much of some pieces' time lies before each moment; pieces are sorted and apart."""
    begins, ends = inside["start_ns"].to_numpy(), inside["end_ns"].to_numpy()
    if not len(begins):
        return np.zeros(moments.shape)
    edges = np.column_stack([begins, ends]).ravel()
    lengths = np.concatenate([[0], np.cumsum(ends - begins)])
    heights = np.column_stack([lengths[:-1], lengths[1:]]).ravel()
    return np.asarray(np.interp(moments, edges, heights))
