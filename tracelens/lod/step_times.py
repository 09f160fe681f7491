"""Every rank's time in every step by category: one dense block of numbers, and what charts show of it.

A grid makes the block as small as a picture: the worst of each cell is what it shows. Of every step
there are the median rank and the longest one, and a sample of all. The block is gone through some
columns at a time, so that thousands of ranks and 10^5 steps need little memory.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.accounting.categories import CATEGORIES
from tracelens.caching import cached_property

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import polars as pl

    from tracelens.arrays import Array, Flags, Floats, Ints
    from tracelens.lod.step_matrices import StepMatrix


EVERY: Final = slice(None)
Block: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
AT_ONCE: Final = 1 << 21  # numbers
SAMPLED: Final = 2_000_000  # times of ranks in steps; of longer runs every n-th step


class Sums(NamedTuple):
    """Sums over the ranks: time in ns, [category, step], and how many ranks took part, [step]."""

    ns: Floats
    there: Ints

    @classmethod
    def from_matrices(cls, ns: Block | Sequence[StepMatrix], there: Flags | StepMatrix) -> Sums:
        """Add up what `Times` hold."""
        rank_counts = there[EVERY].sum(axis=1)
        sums = np.zeros((len(ns), len(rank_counts)))
        for row, part in zip(sums, ns, strict=True):
            part[EVERY].sum(axis=1, dtype=np.float64, out=row)
        return cls(sums, rank_counts)


@dataclass(frozen=True, eq=False)
class Times:
    """`ns` has each category's times, [step, rank]; `there` is whether a rank took part, [step, rank].

    `usual_ns` is the median length of a rank's step. Of an index, both are decoded where they are looked
    at, and their sums over the ranks are `known`.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    categories: tuple[str, ...]
    ns: Block | Sequence[StepMatrix]
    there: Flags | StepMatrix
    usual_ns: float
    known: Sums | None = None

    @classmethod
    def from_partition(
        cls, time_by_category: Array, windows: pl.DataFrame, ranks: Iterable[int]
    ) -> Times:
        """Build them from `Phases.spent` and the step windows of its rows, with their rank and step.

        Time outside of steps is left out.
        """
        rows = tuple(ranks)
        step, rank = windows["step"].to_numpy(), windows["rank"].to_numpy()
        has_time = np.zeros(len(step), np.bool_)
        for category in time_by_category.T:
            has_time |= category != 0
        rows_in_steps = np.flatnonzero(has_time & (step >= 0) & np.isin(rank, rows))
        steps, column = np.unique(step[rows_in_steps], return_inverse=True)
        row = np.argsort(rows)[np.searchsorted(np.sort(rows), rank[rows_in_steps])]
        present_codes = [
            code
            for code, category in enumerate(time_by_category.T)
            if category[rows_in_steps].any()
        ]
        kind = np.min_scalar_type(
            max((int(time_by_category.T[code].max()) for code in present_codes), default=0)
        )
        was_present = np.zeros((len(steps), len(rows)), np.bool_)
        was_present[column, row] = True
        ns = np.zeros((len(present_codes), *was_present.shape), max(kind, np.dtype(np.uint32)))
        for category_cells, code in zip(ns, present_codes, strict=True):
            category_ns = time_by_category.T[code][rows_in_steps]
            nonzero = np.flatnonzero(category_ns)
            category_cells[column[nonzero], row[nonzero]] = category_ns[nonzero]
        lengths = ns.sum(axis=0)[was_present]
        median_step_ns = float(np.median(lengths)) if len(lengths) else 0.0
        categories = tuple(CATEGORIES[code] for code in present_codes)
        return cls(rows, tuple(steps.tolist()), categories, ns, was_present, median_step_ns)

    def time_in(self, categories: Iterable[str], columns: slice = EVERY) -> Floats:
        """Sum up some categories, [rank, step] in ns; NaN where a rank was not there.

        `columns` are indices into `steps`: a long run with many ranks does not fit into memory.
        """
        sums = np.where(self.there[columns], 0.0, np.nan)
        wanted = set(categories)
        for index, category in enumerate(self.categories):
            if category in wanted:
                sums += self.ns[index][columns]
        return np.ascontiguousarray(sums.T)

    @cached_property
    def sums(self) -> Sums:
        """The sums over the ranks."""
        return self.known or Sums.from_matrices(self.ns, self.there)

    @property
    def mean(self) -> Floats:
        """The mean over the ranks that were there, [category, step] in ns."""
        return np.asarray(self.sums.ns / np.maximum(self.sums.there, 1))

    def in_step(self, category: str, step: int) -> dict[int, int]:
        """Return the time in one category of one step by rank, ns; empty where no such step exists."""
        return self._in_step(step, [category] if category in self.categories else [])

    def lengths_in(self, step: int) -> dict[int, int]:
        """Return the length of one step by rank, ns; empty where no such step exists."""
        return self._in_step(step, self.categories)

    def _in_step(self, step: int, categories: Iterable[str]) -> dict[int, int]:
        step_index = int(np.searchsorted(self.steps, step))
        if step_index == len(self.steps) or self.steps[step_index] != step:
            return {}
        step_slice = slice(step_index, step_index + 1)
        spent_ns = np.zeros(len(self.ranks), np.int64)
        for category in categories:
            spent_ns += self.ns[self.categories.index(category)][step_slice][0].astype(np.int64)
        was_present = self.there[step_slice][0]
        return {
            rank: int(ns)
            for rank, ns, t in zip(self.ranks, spent_ns, was_present, strict=True)
            if t
        }

    def shares(self) -> Floats:
        """Return each category's share of all ranks' time, [category, step]."""
        sums = self.sums.ns
        return np.asarray(sums / np.maximum(sums.sum(axis=0), 1.0))


def split_evenly(length: int, max_parts: int) -> list[slice]:
    """Split `length` indices into at most `max_parts` slices of about equal length."""
    bounds = np.linspace(0, length, min(length, max_parts) + 1).astype(int).tolist()
    return [slice(a, b) for a, b in pairwise(bounds)]


def chunks(times: Times, max_numbers: int = AT_ONCE) -> Iterator[slice]:
    """Yield columns that fit into memory together."""
    width = max(max_numbers // max(len(times.ranks), 1), 1)
    for first in range(0, len(times.steps), width):
        yield slice(first, min(first + width, len(times.steps)))


@dataclass(frozen=True, eq=False)
class StepGrid:
    """Time in some categories as cells, each the longest of `viewport` (ranks) and `files` (steps)."""

    times: Times
    categories: tuple[str, ...]
    rows: list[slice]
    columns: list[slice]

    @classmethod
    def from_times(
        cls, times: Times, categories: Iterable[str], most_rows: int, most_columns: int
    ) -> StepGrid:
        """Divide the block."""
        rank_slices, step_slices = (
            split_evenly(len(times.ranks), most_rows),
            split_evenly(len(times.steps), most_columns),
        )
        return cls(times, tuple(categories), rank_slices, step_slices)

    @cached_property
    def cells_ns(self) -> Floats:
        """The longest time of each cell, [row, column]; NaN where no rank took part."""
        first_ranks = [steps.start for steps in self.rows]
        longest_by_column = [
            np.fmax.reduceat(
                np.fmax.reduce(self.times.time_in(self.categories, steps), axis=1), first_ranks
            )
            for steps in self.columns
        ]
        return np.array(longest_by_column, float).T.reshape(len(self.rows), len(self.columns))

    def shown_at(self, first_rank: int, first_step: int) -> tuple[int, int]:
        """Return the rank and step that a cell shows, by the first rank and the first step of it."""
        row = [self.times.ranks[part.start] for part in self.rows].index(first_rank)
        column = [self.times.steps[part.start] for part in self.columns].index(first_step)
        return self.longest(row, column)

    def longest(self, row: int, column: int) -> tuple[int, int]:
        """Return the rank and the step that a cell shows."""
        ranks, steps = self.rows[row], self.columns[column]
        block = np.nan_to_num(self.times.time_in(self.categories, steps)[ranks], nan=-1)
        rank, step = np.unravel_index(int(block.argmax()), block.shape)
        return self.times.ranks[ranks.start + int(rank)], self.times.steps[steps.start + int(step)]


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Time in some categories by step, ns; `longest_rank` took `longest_ns`.

    `sample_ns` are the times of single ranks in steps, [rank, step], of every `every`-th step.
    """

    steps: tuple[int, ...]
    usual_ns: Floats
    longest_ns: Floats
    longest_rank: tuple[int, ...]
    ranks: tuple[int, ...]
    sample_ns: Floats
    every: int

    @classmethod
    def from_times(cls, times: Times, categories: Sequence[str]) -> StepTimes:
        """Measure all steps in which any rank took part."""
        median_parts, longest_parts, longest_rank_rows = (
            [np.zeros(0)],
            [np.zeros(0)],
            [np.zeros(0, np.int64)],
        )
        for steps in chunks(times):
            spent = times.time_in(categories, steps)
            median_parts.append(_median(spent))
            filled = np.nan_to_num(spent, nan=-1)
            longest_parts.append(filled.max(axis=0))
            longest_rank_rows.append(filled.argmax(axis=0))
        sample_stride = max(-(-len(times.steps) * len(times.ranks) // SAMPLED), 1)
        ranks = tuple(times.ranks[row] for row in np.concatenate(longest_rank_rows).tolist())
        sample = times.time_in(categories, slice(None, None, sample_stride))
        medians_and_maxima = np.concatenate(median_parts), np.concatenate(longest_parts)
        return cls(times.steps, *medians_and_maxima, ranks, times.ranks, sample, sample_stride)


def _median(spent: Floats) -> Floats:
    """Return each column's median; NaN where no rank took part."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a step without ranks has none
        return np.asarray(np.nanmedian(spent, axis=0))
