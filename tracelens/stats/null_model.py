"""The null model, learnt from peers: how blocks of steps vary, and how equal ranks differ for good.

Every rank is compared with the median of its peers, and so is every peer with that of the other ones:
what these differ by is noise (an AR(1) process, learnt from all blocks) and the spread between equal
ranks (learnt from windows as long as the one judged, with a weak prior). Each has its own degrees of
freedom, and their sum has those of Welch (1947) and Satterthwaite (1946).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.stats.robust import measure_deviation

if TYPE_CHECKING:
    from tracelens.arrays import Floats

# of a step: equal ranks differ by this standard deviation, permanently [calibrate; one decision in
# NullModel.of, NullModel.scale]
SPREAD_OF_EQUAL_RANKS: Final = 0.003
# times: the permanent difference of equal ranks is this much larger than its changes [calibrate]
RATIO_OF_SPREAD_TO_ITS_CHANGES: Final = 3
# share: steps outside of a window that is longer predict nothing [calibrate]
MAX_SHARE_OF_RUN_WITH_OUTSIDE: Final = 0.75
# degrees of freedom: the prior spread of ranks has this weight [calibrate]
FREEDOM_OF_SPREAD_PRIOR: Final = 3
# degrees of freedom: noise has as many before any block [calibrate]
FREEDOM_OF_NOISE_PRIOR: Final = 3
# degrees of freedom: a peer's block adds as much to those of the noise [calibrate]
FREEDOM_OF_NOISE_PER_BLOCK: Final = 0.09
MAX_FREEDOM_OF_NOISE: Final = 60  # degrees of freedom: noise is known no better [calibrate]
# degrees of freedom: a peer's window adds less than 1, since windows overlap [calibrate]
FREEDOM_OF_SPREAD_PER_WINDOW: Final = 0.5
MAX_FREEDOM_OF_SPREAD: Final = 60  # degrees of freedom: the spread is known no better [calibrate]
# standard deviations: a mean that is farther out counts as one that far off [calibrate]
Z_SCORE_TO_CLIP_MEANS: Final = 2.0
# standard deviations: a block that is farther out counts as one that far off [calibrate]
Z_SCORE_TO_CLIP_NOISE: Final = 3
# correlation: neighbouring blocks of noise are taken as no more alike [calibrate]
MAX_CORRELATION_OF_BLOCKS: Final = 0.75


# The variance of the median of so many normal numbers (David & Nagaraja 2003, section 3).
_MEDIANS: Final = (np.inf, 1.0, 0.5, 0.4487, 0.2982, 0.2868, 0.2147, 0.2104)


def median_of_others(values: Floats) -> Floats:
    """Return for each value, [row, rank], the median of the others in its row; two or more ranks."""
    order = np.argsort(values, axis=1)
    place = np.argsort(order, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    count = values.shape[1]
    low, high = ((count - 2) // 2, (count - 1) // 2)
    middles = [np.where(place <= at, ordered[:, [at + 1]], ordered[:, [at]]) for at in (low, high)]
    return np.asarray((middles[0] + middles[1]) / 2)


@dataclass(frozen=True)
class NullModel:
    """The noise of a rank against its peers, and the variance between ranks for good.

    `wider` is by what a rank's variance against all `ranks` peers differs from that of a peer against
    the other ones.
    """

    noise: Noise
    spread: float
    wider: float
    blocks: int
    ranks: int

    @classmethod
    def of(cls, peers: Floats) -> NullModel:
        """Learn it from peers against each other, [block, rank]."""
        blocks, ranks = peers.shape
        wider = (1 + _variance_of_median(ranks)) / (1 + _variance_of_median(ranks - 1))
        noise = Noise.of(peers, wider)
        seen = wider * _variance(peers.mean(axis=0)) - noise.variance(blocks)
        return cls(noise, max(seen, SPREAD_OF_EQUAL_RANKS**2), wider, blocks, ranks)

    def lasting(self, length: int) -> float:
        """Return what part of a rank's mean outside of a window is expected inside of it, too.

        That is the best linear prediction from noise outside and spread between ranks (Henderson 1975):
        all if ranks differ for good, nothing if they hardly do.
        """
        if length > MAX_SHARE_OF_RUN_WITH_OUTSIDE * self.blocks:
            return 0.0
        return self.spread / (self.spread + self.noise.variance(self.blocks - length))

    def scale(self, length: int, means: Floats) -> tuple[float, float]:
        """Return the deviation of means over such windows, and its degrees of freedom.

        `means` are those of the peers, [window, rank].
        """
        lasting = self.lasting(length)
        outside = self.noise.variance(self.blocks - length) if lasting else 0.0
        noise = self.noise.variance(length) + lasting**2 * outside
        # What equal ranks differ by for good changes with time, but by a fraction of it.
        changing = (1 - lasting) ** 2 + (lasting / RATIO_OF_SPREAD_TO_ITS_CHANGES) ** 2
        natural = SPREAD_OF_EQUAL_RANKS**2 * changing
        values = (self.ranks - 1) * self.blocks
        known = FREEDOM_OF_NOISE_PRIOR + FREEDOM_OF_NOISE_PER_BLOCK * values
        known = min(known, MAX_FREEDOM_OF_NOISE)
        freedom = min(FREEDOM_OF_SPREAD_PER_WINDOW * values / length, MAX_FREEDOM_OF_SPREAD)
        observed = self.wider * _variance(means)
        if observed < noise + natural:
            firm = _freedom((noise, known), (natural, FREEDOM_OF_SPREAD_PRIOR))
            both = (freedom * observed + firm * (noise + natural)) / (freedom + firm)
            return float(np.sqrt(both)), freedom + firm
        uncertain = freedom + FREEDOM_OF_SPREAD_PRIOR
        natural = freedom * (observed - noise) + FREEDOM_OF_SPREAD_PRIOR * natural
        natural /= uncertain
        return float(np.sqrt(noise + natural)), _freedom((noise, known), (natural, uncertain))


def _variance(values: Floats) -> float:
    """Return the variance of values around 0, some of which may be far out."""
    limit = Z_SCORE_TO_CLIP_MEANS * measure_deviation(values)
    clipped = float(np.mean(np.clip(values, -limit, limit) ** 2))
    return clipped / _clipped_variance(Z_SCORE_TO_CLIP_MEANS)


@cache
def _clipped_variance(limit: float) -> float:
    """Return what is left of the variance of normal numbers that are cut at `limit` deviations."""
    normal = NormalDist()
    inside, beyond = 1 - 2 * normal.cdf(-limit), 2 * normal.cdf(-limit)
    return inside - 2 * limit * normal.pdf(limit) + limit**2 * beyond


def _variance_of_median(count: int) -> float:
    """Return the variance of the median of so many normal numbers."""
    return _MEDIANS[count] if count < len(_MEDIANS) else np.pi / 2 / (count + np.pi / 2 - 1)


def _freedom(*parts: tuple[float, float]) -> float:
    """Return the degrees of freedom of a sum of variances, each with its own."""
    total = sum(variance for variance, _ in parts)
    return total**2 / sum(variance**2 / freedom for variance, freedom in parts)


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
        limit = Z_SCORE_TO_CLIP_NOISE * measure_deviation(centred)
        centred = np.clip(centred, -limit, limit)
        alone = float(np.median((centred**2).mean(axis=0)))
        pairs = centred[1:] * centred[:-1]
        with_next = float(np.median(pairs.mean(axis=0))) if len(pairs) else 0.0
        rho = max(with_next / alone, 0.0) if alone else 0.0
        rho = min(rho + (1 + 4 * rho) / len(blocks), MAX_CORRELATION_OF_BLOCKS)
        return cls(wider * max(alone - with_next, 0.0) / (1 - rho), rho)

    def variance(self, length: int) -> float:
        """Return the variance of the mean of so many blocks."""
        apart = np.arange(1, length)
        alike = 1 + 2 * float(((1 - apart / length) * self.alike**apart).sum())
        return self.level * alike / length
