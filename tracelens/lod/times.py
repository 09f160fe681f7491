"""Every rank's time in every step by category, as one dense block of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import polars as pl

from tracelens.analyses.phases import CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Iterable

Matrix: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
EVERY: Final = slice(None)
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
        steps = inside["step"].unique().sort()
        category = inside["category"].cast(pl.Enum(CATEGORIES)).to_physical().to_numpy()
        present = np.flatnonzero(np.bincount(category, minlength=len(CATEGORIES)))
        rank = np.argsort(rows)[np.searchsorted(np.sort(rows), inside["rank"].to_numpy())]
        place = np.searchsorted(present, category), rank, steps.search_sorted(inside["step"])
        most = inside["ns"].max()
        kind = np.min_scalar_type(most if isinstance(most, int) else 0)
        shape = (len(present), len(rows), len(steps))
        ns = np.zeros(shape, max(kind, np.dtype(np.uint32)))
        ns[place] = inside["ns"].to_numpy()
        there = np.zeros(ns.shape[1:], np.bool_)
        there[place[1:]] = True
        lengths = ns.sum(axis=0)[there]
        usual = float(np.median(lengths)) if len(lengths) else 0.0
        categories = tuple(CATEGORIES[code] for code in present)
        return cls(rows, tuple(steps), categories, ns, there, usual)

    def spent(self, categories: Iterable[str], columns: slice = EVERY) -> Matrix:
        """Sum up some categories, [rank, step] in ns; NaN where a rank was not there.

        `columns` are places in `steps`: of a long run with many ranks, not all fit into memory at once.
        """
        sums = np.where(self.there[:, columns], 0.0, np.nan)
        wanted = set(categories)
        for index, category in enumerate(self.categories):
            if category in wanted:
                sums += self.ns[index, :, columns]
        return sums

    @cached_property
    def mean(self) -> Matrix:
        """The mean over the ranks that were there, [category, step] in ns."""
        present = np.maximum(self.there.sum(axis=0), 1)
        return np.asarray(self.ns.sum(axis=1, dtype=np.float64) / present)

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
