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
from tracelens.stats.robust import medians

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

    total_ns: Floats
    rank_counts: Ints

    @classmethod
    def from_matrices(
        cls, matrices_ns: Block | Sequence[StepMatrix], is_present: Flags | StepMatrix
    ) -> Sums:
        """Add up what `CategoryTimes` hold."""
        rank_counts = is_present[EVERY].sum(axis=1)
        sums_ns = np.zeros((len(matrices_ns), len(rank_counts)))
        for category_sums_ns, matrix in zip(sums_ns, matrices_ns, strict=True):
            matrix[EVERY].sum(axis=1, dtype=np.float64, out=category_sums_ns)
        return cls(sums_ns, rank_counts)


@dataclass(frozen=True, eq=False)
class CategoryTimes:
    """Each rank's time in each step by category, `matrices_ns`, each [step, rank], in their order.

    `is_present`, [step, rank], is whether a rank took part. `median_step_ns` is the median length of a
    rank's step. Matrices of an index are decoded where they are used; `stored_sums` come from it.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    categories: tuple[str, ...]
    matrices_ns: Block | Sequence[StepMatrix]
    is_present: Flags | StepMatrix
    median_step_ns: float
    stored_sums: Sums | None = None

    @classmethod
    def from_partition(
        cls, time_by_category: Array, windows: pl.DataFrame, rank_order: Iterable[int]
    ) -> CategoryTimes:
        """Build the times from `Phases.spent_ns`, [window, category], ns, without time outside of steps.

        `windows` has one row per step window, with its `rank` and `step`.
        """
        ranks = tuple(rank_order)
        step, rank = windows["step"].to_numpy(), windows["rank"].to_numpy()
        has_time = np.zeros(len(step), np.bool_)
        for window_ns in time_by_category.T:
            has_time |= window_ns != 0
        selected = np.flatnonzero(has_time & (step >= 0) & np.isin(rank, ranks))
        steps, step_index = np.unique(step[selected], return_inverse=True)
        rank_index = np.argsort(ranks)[np.searchsorted(np.sort(ranks), rank[selected])]
        present_codes = [  # indices of `CATEGORIES`
            code for code, window_ns in enumerate(time_by_category.T) if window_ns[selected].any()
        ]
        dtype = np.min_scalar_type(
            max((int(time_by_category.T[code].max()) for code in present_codes), default=0)
        )
        is_present = np.zeros((len(steps), len(ranks)), np.bool_)
        is_present[step_index, rank_index] = True
        ns = np.zeros((len(present_codes), *is_present.shape), max(dtype, np.dtype(np.uint32)))
        for category_matrix, code in zip(ns, present_codes, strict=True):
            category_ns = time_by_category.T[code][selected]
            occurring = np.flatnonzero(category_ns)
            category_matrix[step_index[occurring], rank_index[occurring]] = category_ns[occurring]
        lengths_ns = ns.sum(axis=0)[is_present]
        median_step_ns = float(np.median(lengths_ns)) if len(lengths_ns) else 0.0
        categories = tuple(CATEGORIES[code] for code in present_codes)
        return cls(ranks, tuple(steps.tolist()), categories, ns, is_present, median_step_ns)

    def sum_time_ns(self, categories: Iterable[str], columns: slice = EVERY) -> Floats:
        """Sum up some categories, [rank, step] in ns; NaN where a rank was not there.

        `columns` selects steps by index: a long run with many ranks does not fit into memory.
        """
        sums_ns = np.where(self.is_present[columns], 0.0, np.nan)
        selected = set(categories)
        for index, category in enumerate(self.categories):
            if category in selected:
                sums_ns += self.matrices_ns[index][columns]
        return np.ascontiguousarray(sums_ns.T)

    @cached_property
    def sums_over_ranks(self) -> Sums:
        """The sums over the ranks."""
        return self.stored_sums or Sums.from_matrices(self.matrices_ns, self.is_present)

    @property
    def mean_time_ns(self) -> Floats:
        """The mean over the ranks that were there, [category, step] in ns."""
        return np.asarray(
            self.sums_over_ranks.total_ns / np.maximum(self.sums_over_ranks.rank_counts, 1)
        )

    def time_ns_by_rank(self, category: str, step: int) -> dict[int, int]:
        """Return the time in one category of one step by rank, ns; empty where no such step exists."""
        return self._sum_time_by_rank(step, [category] if category in self.categories else [])

    def step_ns_by_rank(self, step: int) -> dict[int, int]:
        """Return the length of one step by rank, ns; empty where no such step exists."""
        return self._sum_time_by_rank(step, self.categories)

    def _sum_time_by_rank(self, step: int, categories: Iterable[str]) -> dict[int, int]:
        """Sum the time of each rank in some categories of a step, ns; empty without such a step."""
        step_index = int(np.searchsorted(self.steps, step))
        if step_index == len(self.steps) or self.steps[step_index] != step:
            return {}
        step_slice = slice(step_index, step_index + 1)
        spent_ns = np.zeros(len(self.ranks), np.int64)
        for category in categories:
            spent_ns += self.matrices_ns[self.categories.index(category)][step_slice][0].astype(
                np.int64
            )
        presence = self.is_present[step_slice][0]
        return {
            rank: int(ns)
            for rank, ns, is_present in zip(self.ranks, spent_ns, presence, strict=True)
            if is_present
        }

    def compute_category_shares(self) -> Floats:
        """Return each category's share of all ranks' time, [category, step]."""
        sums = self.sums_over_ranks.total_ns
        return np.asarray(sums / np.maximum(sums.sum(axis=0), 1.0))


def split_evenly(length: int, max_parts: int) -> list[slice]:
    """Split `length` indices into at most `max_parts` slices of about equal length."""
    bounds = np.linspace(0, length, min(length, max_parts) + 1).astype(int).tolist()
    return [slice(begin, end) for begin, end in pairwise(bounds)]


def iterate_chunks(times: CategoryTimes, max_numbers: int = AT_ONCE) -> Iterator[slice]:
    """Yield slices of steps whose times fit into memory together."""
    steps_per_chunk = max(max_numbers // max(len(times.ranks), 1), 1)
    for first_step in range(0, len(times.steps), steps_per_chunk):
        yield slice(first_step, min(first_step + steps_per_chunk, len(times.steps)))


@dataclass(frozen=True, eq=False)
class StepGrid:
    """Time in some categories as cells: the longest time of a slice of ranks in a slice of steps."""

    category_times: CategoryTimes
    categories: tuple[str, ...]
    rank_slices: list[slice]
    step_slices: list[slice]

    @classmethod
    def from_times(
        cls, times: CategoryTimes, categories: Iterable[str], most_rows: int, most_columns: int
    ) -> StepGrid:
        """Divide the block."""
        rank_slices = split_evenly(len(times.ranks), most_rows)
        step_slices = split_evenly(len(times.steps), most_columns)
        return cls(times, tuple(categories), rank_slices, step_slices)

    @cached_property
    def longest_time_ns(self) -> Floats:
        """The longest time of each cell, [row, column]; NaN where no rank took part."""
        first_ranks = [steps.start for steps in self.rank_slices]
        longest_by_column = [
            np.fmax.reduceat(
                np.fmax.reduce(self.category_times.sum_time_ns(self.categories, steps), axis=1),
                first_ranks,
            )
            for steps in self.step_slices
        ]
        return np.array(longest_by_column, float).T.reshape(
            len(self.rank_slices), len(self.step_slices)
        )

    def find_longest_from(self, first_rank: int, first_step: int) -> tuple[int, int]:
        """Return the rank and step that a cell shows, by the first rank and the first step of it."""
        row = [self.category_times.ranks[part.start] for part in self.rank_slices].index(first_rank)
        column = [self.category_times.steps[part.start] for part in self.step_slices].index(
            first_step
        )
        return self.find_longest(row, column)

    def find_longest(self, row: int, column: int) -> tuple[int, int]:
        """Return the rank and the step that a cell shows."""
        ranks, steps = self.rank_slices[row], self.step_slices[column]
        cell_ns = np.nan_to_num(
            self.category_times.sum_time_ns(self.categories, steps)[ranks], nan=-1
        )
        rank, step = np.unravel_index(int(cell_ns.argmax()), cell_ns.shape)
        return self.category_times.ranks[ranks.start + int(rank)], self.category_times.steps[
            steps.start + int(step)
        ]


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Time in some categories by step, ns; `longest_ranks` took `longest_ns`.

    `sample_ns` are the times of single ranks in steps, [rank, step], of every `sample_stride`-th step.
    """

    steps: tuple[int, ...]
    rank_median_ns: Floats
    longest_ns: Floats
    longest_ranks: tuple[int, ...]
    ranks: tuple[int, ...]
    sample_ns: Floats
    sample_stride: int

    @classmethod
    def from_times(cls, times: CategoryTimes, categories: Sequence[str]) -> StepTimes:
        """Measure all steps in which any rank took part."""
        median_parts = [np.zeros(0)]
        longest_parts = [np.zeros(0)]
        longest_rank_rows = [np.zeros(0, np.int64)]
        for steps in iterate_chunks(times):
            spent_ns = times.sum_time_ns(categories, steps)
            median_parts.append(_median(spent_ns))
            known_ns = np.nan_to_num(spent_ns, nan=-1)
            longest_parts.append(known_ns.max(axis=0))
            longest_rank_rows.append(known_ns.argmax(axis=0))
        sample_stride = max(-(-len(times.steps) * len(times.ranks) // SAMPLED), 1)
        ranks = tuple(times.ranks[row] for row in np.concatenate(longest_rank_rows).tolist())
        sample_ns = times.sum_time_ns(categories, slice(None, None, sample_stride))
        medians_and_maxima = np.concatenate(median_parts), np.concatenate(longest_parts)
        return cls(times.steps, *medians_and_maxima, ranks, times.ranks, sample_ns, sample_stride)


def _median(spent: Floats) -> Floats:
    """Return each column's median; NaN where no rank took part."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a step without ranks has none
        return medians(spent, 0)
