"""The null model, learnt from peers: how blocks of steps vary, and how equal ranks differ permanently.

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
# NullModel.from_peers, NullModel.measure_scale]
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
    position = np.argsort(order, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    count = values.shape[1]
    # Without a value, those after it move up by one.
    lower, upper = (
        np.where(position <= middle, ordered[:, [middle + 1]], ordered[:, [middle]])
        for middle in ((count - 2) // 2, (count - 1) // 2)
    )
    return np.asarray((lower + upper) / 2)


@dataclass(frozen=True)
class NullModel:
    """The noise of a rank against its peers, and the permanent variance between ranks.

    Variances are of shares of a step. `variance_ratio` is that of a rank's variance against all peers to
    that of a peer against the other ones. All is learnt from `block_count` blocks of steps.
    """

    noise: Noise
    spread_variance: float
    variance_ratio: float
    block_count: int
    peer_count: int

    @classmethod
    def from_peers(cls, peers: Floats) -> NullModel:
        """Learn the model from residuals of peers against each other, [block, rank]."""
        block_count, peer_count = peers.shape
        variance_ratio = (1 + _variance_of_median(peer_count)) / (
            1 + _variance_of_median(peer_count - 1)
        )
        noise = Noise.from_blocks(peers, variance_ratio)
        observed = variance_ratio * _measure_variance(peers.mean(axis=0)) - noise.variance_of_mean(
            block_count
        )
        return cls(
            noise,
            spread_variance=max(observed, SPREAD_OF_EQUAL_RANKS**2),
            variance_ratio=variance_ratio,
            block_count=block_count,
            peer_count=peer_count,
        )

    def predict_lasting_share(self, length: int) -> float:
        """Predict the share of a rank's mean outside of a window that is in it, too.

        That is the best linear prediction from noise outside and spread between ranks (Henderson 1975):
        all if ranks differ permanently, nothing if they hardly do.
        """
        if length > MAX_SHARE_OF_RUN_WITH_OUTSIDE * self.block_count:
            return 0.0
        return self.spread_variance / (
            self.spread_variance + self.noise.variance_of_mean(self.block_count - length)
        )

    def measure_scale(self, length: int, means: Floats) -> tuple[float, float]:
        """Return the standard deviation of means over `length` blocks, and its degrees of freedom.

        `means` are those of the peers over all such windows, [window, rank].
        """
        lasting_share = self.predict_lasting_share(length)
        outside_variance = (
            self.noise.variance_of_mean(self.block_count - length) if lasting_share else 0.0
        )
        noise_variance = self.noise.variance_of_mean(length) + lasting_share**2 * outside_variance
        # What equal ranks differ by for good changes with time, but by a fraction of it.
        changing_share = (1 - lasting_share) ** 2 + (
            lasting_share / RATIO_OF_SPREAD_TO_ITS_CHANGES
        ) ** 2
        spread_variance = SPREAD_OF_EQUAL_RANKS**2 * changing_share
        block_count = (self.peer_count - 1) * self.block_count
        noise_freedom = FREEDOM_OF_NOISE_PRIOR + FREEDOM_OF_NOISE_PER_BLOCK * block_count
        noise = noise_variance, min(noise_freedom, MAX_FREEDOM_OF_NOISE)
        observed_variance = self.variance_ratio * _measure_variance(means)
        spread_freedom = min(
            FREEDOM_OF_SPREAD_PER_WINDOW * block_count / length, MAX_FREEDOM_OF_SPREAD
        )
        if observed_variance < noise_variance + spread_variance:
            prior_freedom = _combine_freedoms(noise, (spread_variance, FREEDOM_OF_SPREAD_PRIOR))
            sum_of_squares = spread_freedom * observed_variance + prior_freedom * (
                noise_variance + spread_variance
            )
            total_freedom = spread_freedom + prior_freedom
            return float(np.sqrt(sum_of_squares / total_freedom)), total_freedom
        total_freedom = spread_freedom + FREEDOM_OF_SPREAD_PRIOR
        sum_of_squares = spread_freedom * (observed_variance - noise_variance)
        sum_of_squares += FREEDOM_OF_SPREAD_PRIOR * spread_variance
        spread_variance = sum_of_squares / total_freedom
        deviation = float(np.sqrt(noise_variance + spread_variance))
        return deviation, _combine_freedoms(noise, (spread_variance, total_freedom))


def _measure_variance(values: Floats) -> float:
    """Return a robust variance of values around 0."""
    limit = Z_SCORE_TO_CLIP_MEANS * measure_deviation(values)
    clipped = float(np.mean(np.clip(values, -limit, limit) ** 2))
    return clipped / _clipped_variance(Z_SCORE_TO_CLIP_MEANS)


@cache
def _clipped_variance(limit: float) -> float:
    """Return the variance of standard normal numbers that are clipped at `limit`."""
    normal = NormalDist()
    inside, beyond = 1 - 2 * normal.cdf(-limit), 2 * normal.cdf(-limit)
    return inside - 2 * limit * normal.pdf(limit) + limit**2 * beyond


def _variance_of_median(count: int) -> float:
    """Return the variance of the median of `count` normal numbers."""
    return _MEDIANS[count] if count < len(_MEDIANS) else np.pi / 2 / (count + np.pi / 2 - 1)


def _combine_freedoms(*terms: tuple[float, float]) -> float:
    """Return the degrees of freedom of a sum of variances, given as (variance, degrees of freedom)."""
    total = sum(variance for variance, _ in terms)
    return total**2 / sum(variance**2 / freedom for variance, freedom in terms)


@dataclass(frozen=True)
class Noise:
    """How blocks of a rank vary: as an AR(1) process, whose neighbours are alike."""

    block_variance: float  # variance of a block, of shares of a step
    correlation: float  # correlation of neighbouring blocks, 0 to 1

    @classmethod
    def from_blocks(cls, blocks: Floats, variance_ratio: float = 1.0) -> Noise:
        """Learn the noise from each rank's covariances: of blocks, [block, rank], and of neighbours.

        Its variance is `variance_ratio` times as large. What a rank shows is noisy, but the median over
        ranks is not, and a late rank hardly counts in it. Correlation is raised as Kendall (1954) does,
        since levels are taken from the same few blocks.
        """
        centred = blocks - np.median(blocks, axis=0)
        limit = Z_SCORE_TO_CLIP_NOISE * measure_deviation(centred)
        centred = np.clip(centred, -limit, limit)
        variance = float(np.median((centred**2).mean(axis=0)))
        products = centred[1:] * centred[:-1]  # of neighbours
        covariance = float(np.median(products.mean(axis=0))) if len(products) else 0.0
        correlation = max(covariance / variance, 0.0) if variance else 0.0
        correlation += (1 + 4 * correlation) / len(blocks)
        correlation = min(correlation, MAX_CORRELATION_OF_BLOCKS)
        level = variance_ratio * max(variance - covariance, 0.0) / (1 - correlation)
        return cls(block_variance=level, correlation=correlation)

    def variance_of_mean(self, length: int) -> float:
        """Return the variance of the mean of `length` blocks that follow each other."""
        distance = np.arange(1, length)
        inflation = 1 + 2 * float(((1 - distance / length) * self.correlation**distance).sum())
        return self.block_variance * inflation / length
