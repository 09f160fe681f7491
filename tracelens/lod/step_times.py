"""How long steps take: of every step the median rank and the longest one, and a sample of all."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.lod import grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.lod.times import Matrix, Times

SAMPLED: Final = 2_000_000  # times of ranks in steps; of longer runs every n-th step


@dataclass(frozen=True)
class StepTimes:
    """Time in some categories by step, ns; `longest_rank` took `longest_ns`.

    `sample_ns` are the times of single ranks in steps, [rank, step], of every `every`-th step.
    """

    steps: tuple[int, ...]
    usual_ns: Matrix
    longest_ns: Matrix
    longest_rank: tuple[int, ...]
    ranks: tuple[int, ...]
    sample_ns: Matrix
    every: int

    @classmethod
    def of(cls, times: Times, categories: Sequence[str]) -> StepTimes:
        """Measure all steps in which anybody was."""
        usual, longest, who = [np.zeros(0)], [np.zeros(0)], [np.zeros(0, np.int64)]
        for part in grid.chunks(times):
            spent = times.spent(categories, part)
            usual.append(_median(spent))
            filled = np.nan_to_num(spent, nan=-1)
            longest.append(filled.max(axis=0))
            who.append(filled.argmax(axis=0))
        every = max(-(-times.there.size // SAMPLED), 1)
        ranks = tuple(times.ranks[row] for row in np.concatenate(who).tolist())
        sample = times.spent(categories, slice(None, None, every))
        found = np.concatenate(usual), np.concatenate(longest)
        return cls(times.steps, *found, ranks, times.ranks, sample, every)


def _median(spent: Matrix) -> Matrix:
    """Return each column's median; NaN where nobody was there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a step of nobody has none
        return np.asarray(np.nanmedian(spent, axis=0))
