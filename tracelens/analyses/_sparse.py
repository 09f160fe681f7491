"""Stalls: a rank far behind in some steps, too few and too scattered to be a lasting lateness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelens.analyses._special import binomial_tail

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

LEAST_STALL: Final = 0.08  # of the step
LEAST_COUNT: Final = 4
WRONG: Final = 0.0002  # of the searches, of which there is one a phase
_DEVIATIONS: Final = 6
_TO_SIGMA: Final = 1.4826
_MORE_OFTEN: Final = 3  # than the stalls of its peers


@dataclass(frozen=True)
class Stalls:
    """One rank's stalls: their rows, how likely chance is, and every how many rows (null: irregular)."""

    rank: int
    rows: Rows
    p: float
    period: int | None


def find(excess: Floats) -> list[Stalls]:
    """Find ranks that stall clearly more often than any but a quarter of their peers, [step, rank]."""
    steps, ranks = excess.shape
    spread = _TO_SIGMA * np.median(np.abs(excess - np.median(excess, axis=0)))
    if ranks == 3:  # one of three is the median and deviates by nothing
        spread = 2 * spread
    stalled = excess > max(LEAST_STALL, _DEVIATIONS * float(spread))
    counts = stalled.sum(axis=0)
    p, usual = _chances(counts, steps)
    often = (counts >= np.maximum(LEAST_COUNT, _MORE_OFTEN * usual)) & (counts < steps / 2)
    found = []
    for rank in np.flatnonzero(often & (p * ranks < WRONG)):
        rows = np.flatnonzero(stalled[:, rank])
        found.append(Stalls(int(rank), rows, float(p[rank]) * ranks, _period(rows)))
    return found


def _chances(counts: Rows, steps: int) -> tuple[Floats, Floats]:
    """Return how likely so many stalls are, and how many are usual: the peers' upper quartile.

    They must be too many for the usual rate, and too large a part of all stalls of this rank and its
    peers, since that rate is itself known from few of them. Other ranks that stall count little.
    """
    peers = len(counts) - 1
    ordered = np.sort(counts)
    place = np.ceil(0.75 * (peers - 1)).astype(int)
    # Without itself, a rank at or below that place has the next one there.
    usual = np.where(counts <= ordered[place], ordered[place + 1], ordered[place]).astype(float)
    most = usual + LEAST_COUNT - 1
    sums = {limit: np.minimum(counts, limit).sum() for limit in set(most.tolist())}
    total = np.array([sums[limit] for limit in most.tolist()]) - np.minimum(counts, most)
    rate = np.maximum(usual / steps, (total + 1) / (peers * steps + 2))
    by_rate = binomial_tail(counts, steps, rate)
    by_part = binomial_tail(counts, counts + total, 1 / (1 + peers))
    return np.maximum(by_rate, by_part), usual


def _period(rows: Rows) -> int | None:
    """Return the step between stalls if nearly all keep it."""
    gaps = np.diff(rows)
    period = int(np.median(gaps))
    regular = np.mean(np.abs(gaps - np.maximum(np.rint(gaps / period), 1) * period) <= 1)
    return period if period > 2 and regular >= 0.8 else None
