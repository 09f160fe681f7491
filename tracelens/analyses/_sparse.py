"""Stalls: a rank far behind in some steps, too few and too scattered to be a lasting lateness.

Two questions are asked of each rank: does it stall more often than its peers in the whole run, and is
there a while in which it stalls more often than they and itself at other times?
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelens.analyses._interval import greatest_run
from tracelens.analyses._special import binomial_tail

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

LEAST_STALL: Final = 0.08  # of the step
LEAST_COUNT: Final = 4
_ONE_STALL: Final = 4  # steps
WRONG: Final = 0.0002  # of the searches, of which there is one a phase
_DEVIATIONS: Final = 6
_ONE_SIGMA: Final = 0.841  # so much of normal noise is below one deviation:
_OF_RANKS: Final = {3: 1.33}  # one of three is the median and deviates by nothing
_MORE_OFTEN: Final = 3  # than the stalls of its peers


@dataclass(frozen=True)
class Stalls:
    """One rank's stalls: their rows, how likely chance is, and every how many rows (null: irregular)."""

    rank: int
    rows: Rows
    p: float
    period: int | None


@dataclass(frozen=True)
class _While:
    """First and last row with a stall, how often it stalls at other times, and how likely chance is."""

    first: int = 0
    last: int = 0
    rate: float = 1.0
    p: float = 1.0


def find(excess: Floats) -> list[Stalls]:
    """Find ranks that stall clearly more often than any but a quarter of their peers, [step, rank]."""
    steps, ranks = excess.shape
    above = np.quantile(excess - np.median(excess, axis=0), _ONE_SIGMA)
    stalled = excess > max(LEAST_STALL, _DEVIATIONS * _OF_RANKS.get(ranks, 1.0) * float(above))
    apart = _apart(stalled)
    counts = apart.sum(axis=0)
    p, usual = _chances(counts, steps)
    scattered = stalled.sum(axis=0) < steps / 2
    often = (counts >= np.maximum(LEAST_COUNT, _MORE_OFTEN * usual)) & scattered
    found = []
    for rank in range(ranks):
        rows, chance = np.flatnonzero(stalled[:, rank]), float(p[rank])
        if not (often[rank] and chance * ranks < WRONG):
            peers = float(np.delete(counts, rank).mean())
            seen = _while(np.flatnonzero(apart[:, rank]), (peers + 1) / (steps + 1), steps)
            rows, chance = _held(rows, seen), seen.p
        if chance * ranks < WRONG:
            found.append(Stalls(rank, rows, chance * ranks, _period(rows)))
    return found


def _apart(stalled: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Keep stalls that are four steps or more apart: one disturbance may last longer than a step."""
    kept = np.zeros_like(stalled)
    for row, now in enumerate(stalled):
        kept[row] = now & ~kept[max(row - _ONE_STALL + 1, 0) : row].any(axis=0)
    return kept


def _while(starts: Rows, usual: float, steps: int) -> _While:
    """Return the while in which a rank stalls most strikingly, and how likely chance is.

    Of each number of stalls the shortest stretch is tried that begins and ends with one, at the rate of
    the peers or of the rank at other times. Chernoff's bound says quickly which is the most striking.
    """
    numbers = np.arange(LEAST_COUNT, len(starts) + 1)
    if not len(numbers):
        return _While()
    tried = [starts[number - 1 :] - starts[: len(starts) - number + 1] for number in numbers]
    begins = np.array([int(np.argmin(lengths)) for lengths in tried])
    lengths = np.array([lengths.min() for lengths in tried])
    rate = np.maximum((len(starts) - numbers + 1) / np.maximum(steps - lengths, 1), usual)
    chances = _tail_bound(numbers - 1, lengths, rate) * rate * steps * len(starts)
    best = int(np.argmin(chances))
    if chances[best] >= 1:
        return _While()
    first, length, usual = int(starts[begins[best]]), int(lengths[best]), float(rate[best])
    tail = float(binomial_tail(numbers[best] - 1, length, usual))
    return _While(first, first + length, usual, tail * usual * steps * len(starts))


def _tail_bound(count: Rows, trials: Rows, rate: Floats) -> Floats:
    """Return an upper bound of P(X >= count) for a binomial X (Chernoff 1952)."""
    share = np.clip(count / trials, 1e-9, 1 - 1e-9)
    rate = np.clip(rate, 1e-9, 1 - 1e-9)
    apart = share * np.log(share / rate) + (1 - share) * np.log((1 - share) / (1 - rate))
    return np.where(share > rate, np.exp(-trials * apart), 1.0)


def _held(rows: Rows, seen: _While) -> Rows:
    """Return the stalls between the likeliest edges of a while that was found."""
    if seen.p >= 1:
        return rows[:0]
    inside = int(np.count_nonzero((rows >= seen.first) & (rows <= seen.last)))
    often = inside / (seen.last - seen.first + 2)  # never certain
    gains = np.full(int(rows[-1]) + 1, np.log((1 - often) / (1 - seen.rate)))
    gains[rows] = np.log(often / seen.rate)
    begin, end = greatest_run(gains)
    return rows[(rows >= begin) & (rows <= end)]


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
