"""A block of numbers, rank by step, made as small as a picture: the worst of each cell is what it shows.

It is gone through some columns at a time, so that thousands of ranks and 10^5 steps need little memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracelens.lod.times import Matrix, Times

AT_ONCE: Final = 1 << 21  # numbers


def parts(count: int, most: int) -> list[slice]:
    """Cut so many places into at most `most` neighbourhoods of about the same size."""
    edges = np.linspace(0, count, min(count, most) + 1).astype(int).tolist()
    return [slice(a, b) for a, b in pairwise(edges)]


def chunks(times: Times) -> Iterator[slice]:
    """Yield columns that fit into memory together."""
    width = max(AT_ONCE // max(len(times.ranks), 1), 1)
    for first in range(0, len(times.steps), width):
        yield slice(first, min(first + width, len(times.steps)))


@dataclass(frozen=True)
class Grid:
    """Time in some categories as cells, each the longest of `rows` (ranks) and `columns` (steps)."""

    times: Times
    categories: tuple[str, ...]
    rows: list[slice]
    columns: list[slice]

    @classmethod
    def of(cls, times: Times, categories: Iterable[str], most_rows: int, most_columns: int) -> Grid:
        """Divide the block."""
        rows, columns = parts(len(times.ranks), most_rows), parts(len(times.steps), most_columns)
        return cls(times, tuple(categories), rows, columns)

    @cached_property
    def cells_ns(self) -> Matrix:
        """The longest time of each cell, [row, column]; NaN where nobody was there."""
        begins = [part.start for part in self.rows]
        found = [
            np.fmax.reduceat(
                np.fmax.reduce(self.times.spent(self.categories, part), axis=1), begins
            )
            for part in self.columns
        ]
        return np.array(found, float).T.reshape(len(self.rows), len(self.columns))

    def shown_at(self, first_rank: int, first_step: int) -> tuple[int, int]:
        """Return the rank and step that a cell shows, by the first rank and the first step of it."""
        row = [self.times.ranks[part.start] for part in self.rows].index(first_rank)
        column = [self.times.steps[part.start] for part in self.columns].index(first_step)
        return self.longest(row, column)

    def longest(self, row: int, column: int) -> tuple[int, int]:
        """Return the rank and the step that a cell shows."""
        ranks, steps = self.rows[row], self.columns[column]
        block = np.nan_to_num(self.times.spent(self.categories, steps)[ranks], nan=-1)
        rank, step = np.unravel_index(int(block.argmax()), block.shape)
        return self.times.ranks[ranks.start + int(rank)], self.times.steps[steps.start + int(step)]
