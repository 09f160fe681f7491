"""Blocks of steps: what each rank's time is in them, and how that varies by noise alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelens.analyses._robust import deviation

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

LEAST_BLOCK: Final = 4  # steps
MOST_BLOCKS: Final = 64
_FAR_FROM_LEVEL: Final = 3.0  # deviations
_MOST_ALIKE: Final = 0.8
_FAR_FROM_BLOCK: Final = 1.5  # deviations


def block_edges(steps: int) -> Rows:
    """Return where blocks of steps begin, and the end; a remainder belongs to the last block."""
    size = max(LEAST_BLOCK, steps // MOST_BLOCKS)
    edges = np.arange(0, max(steps - size, 0) + 1, size)
    return np.append(edges, steps)


def block_medians(values: Floats, edges: Rows) -> Floats:
    """Condense each block of rows to its median."""
    return np.stack([np.median(values[a:b], axis=0) for a, b in pairwise(edges)])


def block_levels(values: Floats, edges: Rows) -> Floats:
    """Condense each block of rows to its mean, in which rows far from the block's median count less.

    Nearly as sharp as a mean where noise is normal, and as deaf to single spikes as a median (the
    first step of Huber's M-estimator, 1964).
    """
    middles = block_medians(values, edges)
    rest = values - np.repeat(middles, np.diff(edges), axis=0)
    limit = _FAR_FROM_BLOCK * deviation(rest)
    kept = np.clip(rest, -limit, limit)
    return np.asarray(middles + [kept[a:b].mean(axis=0) for a, b in pairwise(edges)])


@dataclass(frozen=True)
class Noise:
    """How blocks of a rank vary: as an AR(1) process, of which neighbours are alike."""

    level: float  # variance
    alike: float  # correlation

    @classmethod
    def of(cls, blocks: Floats, wider: float = 1.0) -> Noise:
        """Learn it from each rank's covariances, of blocks and of neighbours, without what is far out.

        Its variance is `wider` times as large. What a rank shows is noisy, but the median over ranks is
        not, and a late rank hardly counts in it. Correlation is raised as Kendall (1954) does, since
        levels are taken from the same few blocks.
        """
        centred = blocks - np.median(blocks, axis=0)
        limit = _FAR_FROM_LEVEL * deviation(centred)
        centred = np.clip(centred, -limit, limit)
        alone = float(np.median((centred**2).mean(axis=0)))
        with_next = float(np.median((centred[1:] * centred[:-1]).mean(axis=0)))
        rho = max(with_next / alone, 0.0) if alone else 0.0
        rho = min(rho + (1 + 4 * rho) / len(blocks), _MOST_ALIKE)
        return cls(wider * max(alone - with_next, 0.0) / (1 - rho), rho)

    def variance(self, length: int) -> float:
        """Return the variance of the mean of so many blocks."""
        apart = np.arange(1, length)
        alike = 1 + 2 * float(((1 - apart / length) * self.alike**apart).sum())
        return self.level * alike / length
