"""Every rank's time in every step by category, as one dense block of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl

from tracelens.analyses.phases import CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Matrix: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Block: TypeAlias = np.ndarray[Any, np.dtype[np.unsignedinteger[Any]]]


@dataclass(frozen=True)
class Times:
    """`ns` is [category, rank, step]; `there` tells whether a rank took part in a step, [rank, step].

    `usual_ns` is the median length of a rank's step.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    categories: tuple[str, ...]
    ns: Block
    there: np.ndarray[Any, np.dtype[np.bool_]]
    usual_ns: float

    @classmethod
    def of(cls, times: pl.DataFrame, ranks: Iterable[int]) -> Times:
        """Take them from a frame as `Phases.times`; time outside of steps is left out."""
        rows = tuple(ranks)
        inside = times.filter((pl.col("step") >= 0) & pl.col("rank").is_in(list(rows)))
        inside = inside.with_columns(pl.col("category").cast(pl.String))
        steps = inside["step"].unique().sort()
        found = set(inside["category"].unique())
        categories = tuple(name for name in CATEGORIES if name in found)
        place = (
            _places(inside["category"], categories),
            _places(inside["rank"], rows),
            steps.search_sorted(inside["step"]).to_numpy(),
        )
        most = inside["ns"].max()
        kind = np.min_scalar_type(most if isinstance(most, int) else 0)
        ns = np.zeros((len(categories), len(rows), len(steps)), max(kind, np.dtype(np.uint32)))
        ns[place] = inside["ns"].to_numpy()
        there = np.zeros(ns.shape[1:], np.bool_)
        there[place[1:]] = True
        lengths = ns.sum(axis=0)[there]
        usual = float(np.median(lengths)) if len(lengths) else 0.0
        return cls(rows, tuple(steps), categories, ns, there, usual)

    def spent(self, categories: Iterable[str]) -> Matrix:
        """Sum up some categories, [rank, step] in ns; NaN where a rank was not there."""
        sums = np.where(self.there, 0.0, np.nan)
        wanted = set(categories)
        for index, category in enumerate(self.categories):
            if category in wanted:
                sums += self.ns[index]
        return sums

    def in_step(self, category: str, step: int) -> dict[int, int]:
        """Return every rank's time in one category of one step; none where there is no such step."""
        column = int(np.searchsorted(self.steps, step))
        if column == len(self.steps) or self.steps[column] != step:
            return {}
        known = category in self.categories
        row = self.ns[self.categories.index(category), :, column] if known else 0
        spent = np.broadcast_to(row, len(self.ranks))
        there = self.there[:, column]
        return {rank: int(ns) for rank, ns, t in zip(self.ranks, spent, there, strict=True) if t}

    def shares(self) -> Matrix:
        """Return what share of all ranks' time each category took, [category, step]."""
        sums = self.ns.sum(axis=1, dtype=np.float64)
        return np.asarray(sums / np.maximum(sums.sum(axis=0), 1.0))


def _places(values: pl.Series, known: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.intp]]:
    row = {value: place for place, value in enumerate(known)}
    return values.replace_strict(row, return_dtype=pl.Int64).to_numpy().astype(np.intp)
