"""What is normal, learnt from peers: how a rank's blocks of steps vary, and how ranks differ for good.

Every rank is held against the median of its peers, and so is every peer against that of the other ones:
what these differ by is noise (an AR(1) process, learnt from all blocks) and what is natural between
equal ranks (learnt from windows as long as the one judged, with a weak prior). Each has its own degrees
of freedom, and their sum has those of Welch (1947) and Satterthwaite (1946).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelens.analyses._blocks import Noise
from tracelens.analyses._robust import deviation

Floats = npt.NDArray[np.float64]

NATURAL_SPREAD: Final = 0.003  # of the step, between ranks that are equal
_WANDER: Final = 0.001  # of the step: how much that changes with time
_SPREAD_FREEDOM: Final = 3  # nobody knows how equal ranks are
_EFFICIENCY: Final = 0.6  # of a deviation that values far out hardly count in
# Noise of a long mean is learnt through correlation: freedom at least, and for each value (measured).
_NOISE_FREEDOM: Final = (3.0, 0.09)
_MOST_FREEDOM: Final = 60
_FAR_OUT: Final = 2.0  # deviations
_NOT_CUT: Final = 0.92  # of the variance of normal numbers is left if they are cut there
_LONGEST_CHANGE: Final = 0.75  # of the run: beyond, too little is left to compare with
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
class Normal:
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
    def of(cls, peers: Floats) -> Normal:
        """Learn it from peers against each other, [block, rank]."""
        blocks, ranks = peers.shape
        wider = (1 + _of_median(ranks)) / (1 + _of_median(ranks - 1))
        noise = Noise.of(peers, wider)
        seen = wider * _variance(peers.mean(axis=0)) - noise.variance(blocks)
        return cls(noise, max(seen, NATURAL_SPREAD**2), wider, blocks, ranks)

    def lasting(self, length: int) -> float:
        """Return what part of a rank's mean outside of a window is expected inside of it, too.

        That is the best linear prediction from noise outside and spread between ranks (Henderson 1975):
        all if ranks differ for good, nothing if they hardly do.
        """
        if length > _LONGEST_CHANGE * self.blocks:
            return 0.0
        return self.spread / (self.spread + self.noise.variance(self.blocks - length))

    def scale(self, length: int, means: Floats) -> tuple[float, float]:
        """Return the deviation of means over such windows, and its degrees of freedom.

        `means` are those of the peers, [window, rank].
        """
        lasting = self.lasting(length)
        outside = self.noise.variance(self.blocks - length) if lasting else 0.0
        noise = self.noise.variance(length) + lasting**2 * outside
        natural = ((1 - lasting) * NATURAL_SPREAD) ** 2 + (lasting * _WANDER) ** 2
        values = (self.ranks - 1) * self.blocks
        least, each = _NOISE_FREEDOM
        known = min(least + each * values, _MOST_FREEDOM)
        freedom = min(_EFFICIENCY * values / length, _MOST_FREEDOM)
        observed = self.wider * _variance(means)
        if observed < noise + natural:
            firm = _freedom((noise, known), (natural, _SPREAD_FREEDOM))
            both = (freedom * observed + firm * (noise + natural)) / (freedom + firm)
            return float(np.sqrt(both)), freedom + firm
        unsure = freedom + _SPREAD_FREEDOM
        natural = (freedom * (observed - noise) + _SPREAD_FREEDOM * natural) / unsure
        return float(np.sqrt(noise + natural)), _freedom((noise, known), (natural, unsure))


def _variance(values: Floats) -> float:
    """Return the variance of values around 0, some of which may be far out."""
    limit = _FAR_OUT * deviation(values)
    return float(np.mean(np.clip(values, -limit, limit) ** 2)) / _NOT_CUT


def _of_median(count: int) -> float:
    """Return the variance of the median of so many normal numbers."""
    return _MEDIANS[count] if count < len(_MEDIANS) else np.pi / 2 / (count + np.pi / 2 - 1)


def _freedom(*parts: tuple[float, float]) -> float:
    """Return the degrees of freedom of a sum of variances, each with its own."""
    total = sum(variance for variance, _ in parts)
    return total**2 / sum(variance**2 / freedom for variance, freedom in parts)
