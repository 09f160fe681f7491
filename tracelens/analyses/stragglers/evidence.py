"""Evidence of stragglers: windows of steps and scattered stalls in which a rank is beyond its peers.

Windows are judged by `stats/window_scan.py`, each phase for itself and all phases together, and ranks
as a family. Of stalls, steps in which a rank is far behind, too few and scattered for a window, two
questions are asked: does a rank stall more often than its peers in the whole run, and is there a while
in which it stalls more often than they and itself at other times? Both are asked of steps that stand
out and of those that stand out several times as far, so that small disturbances of peers hide no long
ones. The longer stalls are, the fewer of them tell: equal ranks lose little of their time to stalls, so
long ones are rare, whether peers show any or not. Stalls that keep a period are less likely chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.stats import window_scan
from tracelens.stats.changepoint import greatest_run
from tracelens.stats.robust import medians
from tracelens.stats.tails import binomial_tail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.stats.window_scan import Scan


_ONE_SIGMA: Final = NormalDist().cdf(1.0)
_OFF: Final = range(2)  # steps by which stalls may miss their period: none, or one


# probability: stalls of any rank of a healthy run are reported with half of it [calibrate]
MAX_P_VALUE_OF_STALLS: Final = 0.003
# ranks for each late rank: among more, the late ones hardly move what is normal [calibrate]
MAX_RANKS_PER_LATE_RANK: Final = 16
MIN_RANKS_LEFT: Final = 3  # ranks: fewer that are not late do not show what is normal [calibrate]
# share of ranks: fewer that are not late do not show what is normal [calibrate]
MIN_SHARE_OF_RANKS_LEFT: Final = 0.5
# probability: any rank of a healthy run of three ranks or more is reported with it [calibrate]
MAX_P_VALUE_AMONG_MANY_RANKS: Final = 0.003
# probability: one of two ranks is not reported if chance is likelier [calibrate]
MAX_P_VALUE_OF_PAIR: Final = 0.003
MIN_LENGTH_OF_STALL: Final = 0.10  # of a step: a shorter delay is no stall [calibrate]
# standard deviations: a step that is less far out is no stall [calibrate]
MIN_Z_SCORE_OF_STALL: Final = 6.0
# stalls of a rank: as few are no evidence [calibrate; one decision in find_stalls, _stalling,
# _most_striking]
MAX_STALLS_BY_CHANCE: Final = 3
# steps: a stall that begins sooner after another one belongs to it [calibrate]
MIN_STEPS_BETWEEN_STALLS: Final = 4
# share of peers: as many stall no more often than is usual [calibrate]
QUANTILE_OF_USUAL_STALLS: Final = 0.75
# stalls: no more beyond the usual number are counted of a peer [calibrate]
MAX_STALLS_COUNTED_BEYOND_USUAL: Final = 3
# of a step: equal ranks lose as much to stalls, on average, before any is seen [calibrate]
LOSS_OF_EQUAL_RANKS_TO_STALLS: Final = 0.015


@dataclass(frozen=True, eq=False)
class Evidence:
    """Settled rows in which a rank is late in a series (a phase, or all), and how likely chance is.

    `unsure` is the standard error of the delay, as a share of it.
    """

    rank: int
    series: int
    rows: Indices
    p: float
    unsure: float = 0.0
    stalls: bool = False


def find_evidence(residuals: list[Floats], steps: Indices) -> list[Evidence]:
    """Search series of residuals, [step, rank] as shares of the step, each for itself.

    `steps` are their numbers: of those between, nothing is known.
    """
    rate = MAX_P_VALUE_OF_STALLS / 2 / len(residuals)
    stalls = [
        Evidence(one.rank, series, one.rows, one.p, stalls=True)
        for series, values in enumerate(residuals)
        for one in find_stalls(values, steps, rate, residuals[-1] != 0)
    ]
    return [*_windows(residuals), *stalls]


def _windows(residuals: list[Floats]) -> list[Evidence]:
    """Return windows in which ranks are late: in a phase, or in all of them together."""
    judge = _among_many if residuals[0].shape[1] > 2 else _of_two
    scans, chance, holds = judge(residuals)
    found = []
    for series, rank in np.argwhere(holds):
        scan = scans[series]
        rows = np.arange(scan.first[rank], scan.last[rank] + 1)
        unsure = float(scan.scale[rank] / scan.mean[rank])
        found.append(Evidence(int(rank), int(series), rows, float(chance[series, rank]), unsure))
    return found


def _among_many(excess: list[Floats]) -> tuple[list[Scan], Floats, Flags]:
    """Judge three ranks or more: scans, p-values and what holds, [phase, rank].

    Ranks that are late for sure must not be what others are compared with, so these are judged again
    without them, as long as a majority is left (step down: Marcus, Peritz & Gabriel 1976).
    """
    scans, p, holds = _judged(excess, np.zeros(excess[0].shape[1], np.bool_))
    known = np.asarray(holds.any(axis=0))
    while _worth_again(known):
        scans, p, holds = _judged(excess, known)
        now = np.asarray(known | holds.any(axis=0))
        if (now == known).all():
            break
        known = now
    return scans, p, holds


def _worth_again(known: Flags) -> bool:
    """Return whether it matters, and those who are not late still tell what is normal."""
    late, left = np.count_nonzero(known), np.count_nonzero(~known)
    matters = late * MAX_RANKS_PER_LATE_RANK >= len(known)
    return bool(matters and left >= max(MIN_RANKS_LEFT, MIN_SHARE_OF_RANKS_LEFT * len(known)))


def _judged(excess: list[Floats], known: Flags) -> tuple[list[Scan], Floats, Flags]:
    """Judge every rank by those that are not `known` to be late."""
    scans = [window_scan.scan_ranks(values, known) for values in excess]
    p = np.minimum(np.stack([scan.p for scan in scans]) * _tried(len(scans)), 1.0)
    large = np.stack([scan.mean for scan in scans]) >= window_scan.least_effect(p.shape[1])
    worst = np.where(large, p, 1.0).min(axis=0)
    late = window_scan.discoveries(worst, MAX_P_VALUE_AMONG_MANY_RANKS)
    return scans, p, large & late & (p <= worst[late].max(initial=0.0))


def _tried(searches: int) -> Floats:
    """Return by how much p-values rise: half of the chance is for all phases together, the last."""
    if searches == 1:
        return np.ones((1, 1))
    return np.array([[2.0 * (searches - 1)]] * (searches - 1) + [[2.0]])


def _of_two(excess: list[Floats]) -> tuple[list[Scan], Floats, Flags]:
    """Judge two ranks: as `_among_many`."""
    scans = [window_scan.scan_pair(values[:, 1]) for values in excess]
    chance = np.minimum(np.stack([scan.p for scan in scans]) * len(scans), 1.0)
    large = np.stack([scan.mean for scan in scans]) >= window_scan.least_effect(2)
    return scans, chance, (chance < MAX_P_VALUE_OF_PAIR) & large


@dataclass(frozen=True, eq=False)
class RankStalls:
    """One rank's stalls: their rows, and how likely chance is."""

    rank: int
    rows: Ints
    p: float


@dataclass(frozen=True)
class _Stretch:
    """First and last row with a stall, how often it stalls at other times, and how likely chance is."""

    first: int = 0
    last: int = 0
    rate: float = 1.0
    p: float = 1.0


def find_stalls(
    excess: Floats, steps: Indices, rate: float, there: Flags | None = None
) -> list[RankStalls]:
    """Find ranks that stall clearly more often than any but a quarter of their peers, [step, rank].

    `rate` is the chance that any rank is accused wrongly; `there` says where ranks did anything, null =
    where their excess is not 0: of a phase that only one rank has, the others' zeros are what is usual.
    """
    there = excess != 0 if there is None else there
    apart_by = excess - medians(excess, axis=0)
    above = float(np.quantile(apart_by[there], _ONE_SIGMA)) if there.any() else 0.0
    least = max(MIN_LENGTH_OF_STALL, MIN_Z_SCORE_OF_STALL * above)
    likeliest: dict[int, RankStalls] = {}
    while (stalled := excess > least).sum(axis=0).max() > MAX_STALLS_BY_CHANCE:
        for one in _stalling(stalled, steps, rate, least):
            known = likeliest.get(one.rank)
            if known is None or one.p < known.p:
                likeliest[one.rank] = one
        least *= 2
    return [one for _, one in sorted(likeliest.items()) if one.p < rate]


def _stalling(stalled: Flags, numbers: Indices, rate: float, length: float) -> Iterator[RankStalls]:
    """Judge every rank by when it stalled, [step, rank], for `length` of a step or longer."""
    steps, ranks = stalled.shape
    apart = _apart(stalled)
    counts = apart.sum(axis=0)
    usual = _usual(counts)
    scattered = stalled.sum(axis=0) < steps / 2
    often = (counts > np.maximum(MAX_STALLS_BY_CHANCE, usual)) & scattered
    p = _chances(counts, usual, steps, often, length)
    for rank in np.flatnonzero(counts > MAX_STALLS_BY_CHANCE).tolist():
        rows, begins = np.flatnonzero(stalled[:, rank]), np.flatnonzero(apart[:, rank])
        chance = _with_period(float(p[rank]), numbers[begins]) if often[rank] else 1.0
        if chance * ranks >= rate:
            peers = float(np.delete(counts, rank).mean())
            seen = _most_striking(begins, (peers + 1) / (steps + 1), steps)
            rows, chance = _stalls_within(rows, seen), seen.p
        yield RankStalls(rank, rows, chance * ranks)


def _with_period(p: float, begins: Indices) -> float:
    """Return how likely so many stalls are that keep a period so well (Fisher 1932, of two p-values)."""
    gaps = np.diff(begins)
    period = max(float(np.median(gaps)), 1.0)
    off = np.abs(gaps - np.rint(gaps / period) * period)
    kept = [np.count_nonzero(off <= by) for by in _OFF]
    rates = [min((2 * by + 1) / period, 1.0) for by in _OFF]
    by_period = len(_OFF) * float(binomial_tail(np.array(kept) - 1, len(gaps) - 1, rates).min())
    both = p * by_period
    return min(2 * both * (1 - math.log(both)), p) if both > 0 else p


def _apart(stalled: Flags) -> Flags:
    """Keep stalls that are four steps or more apart: one disturbance may last longer than a step."""
    kept = np.zeros_like(stalled)
    last = np.full(stalled.shape[1], -MIN_STEPS_BETWEEN_STALLS)
    for row in np.flatnonzero(stalled.any(axis=1)):
        kept[row] = stalled[row] & (row - last >= MIN_STEPS_BETWEEN_STALLS)
        last[kept[row]] = row
    return kept


def _most_striking(starts: Ints, usual: float, steps: int) -> _Stretch:
    """Return the while in which a rank stalls most strikingly, and how likely chance is.

    Of each number of stalls the shortest stretch is tried that begins and ends with one, at the rate of
    the peers or of the rank at other times. Chernoff's bound says quickly which is the most striking.
    """
    numbers = np.arange(MAX_STALLS_BY_CHANCE + 1, len(starts) + 1)
    if not len(numbers):
        return _Stretch()
    tried = [starts[number - 1 :] - starts[: len(starts) - number + 1] for number in numbers]
    begins = np.array([int(np.argmin(lengths)) for lengths in tried])
    lengths = np.array([lengths.min() for lengths in tried])
    rate = np.maximum((len(starts) - numbers + 1) / np.maximum(steps - lengths, 1), usual)
    chances = _tail_bound(numbers - 1, lengths, rate) * rate * steps * len(starts)
    best = int(np.argmin(chances))
    if chances[best] >= 1:
        return _Stretch()
    first, length, usual = int(starts[begins[best]]), int(lengths[best]), float(rate[best])
    tail = float(binomial_tail(numbers[best] - 1, length, usual))
    return _Stretch(first, first + length, usual, tail * usual * steps * len(starts))


def _tail_bound(count: Ints, trials: Ints, rate: Floats) -> Floats:
    """Return an upper bound of P(X >= count) for a binomial X (Chernoff 1952)."""
    share = np.clip(count / trials, 1e-9, 1 - 1e-9)
    rate = np.clip(rate, 1e-9, 1 - 1e-9)
    apart = share * np.log(share / rate) + (1 - share) * np.log((1 - share) / (1 - rate))
    return np.where(share > rate, np.exp(-trials * apart), 1.0)


def _stalls_within(rows: Ints, seen: _Stretch) -> Ints:
    """Return the stalls between the likeliest edges of a while that was found."""
    if seen.p >= 1:
        return rows[:0]
    inside = int(np.count_nonzero((rows >= seen.first) & (rows <= seen.last)))
    often = inside / (seen.last - seen.first + 2)  # never certain
    gains = np.full(int(rows[-1]) + 1, np.log((1 - often) / (1 - seen.rate)))
    gains[rows] = np.log(often / seen.rate)
    begin, end = greatest_run(gains)
    return rows[(rows >= begin) & (rows <= end)]


def _usual(counts: Ints) -> Floats:
    """Return for each rank how many stalls are usual: its peers' upper quartile."""
    ordered = np.sort(counts)
    place = np.ceil(QUANTILE_OF_USUAL_STALLS * (len(counts) - 2)).astype(int)
    # Without itself, a rank at or below that place has the next one there.
    usual = np.where(counts <= ordered[place], ordered[place + 1], ordered[place])
    return np.asarray(usual, np.float64)


def _chances(counts: Ints, usual: Floats, steps: int, often: Flags, length: float) -> Floats:
    """Return how likely so many stalls are; 1 for ranks that do not stall `often`.

    They must be too many for the usual rate, and too large a part of all stalls of this rank and its
    peers, since that rate is itself known from few of them. Other ranks that stall count little.

    What equal ranks lose to stalls bounds how often those of a `length` occur (Markov's inequality). Of
    a rate that is exponential before anything is seen, with that mean, so many stalls are as likely as
    with so many peers more that show none: a gamma distribution's rate predicts a negative binomial.
    """
    p = np.ones(len(counts))
    if not often.any():
        return p
    peers, own, usual = len(counts) - 1, counts[often], usual[often]
    most = usual + MAX_STALLS_COUNTED_BEYOND_USUAL
    sums = {limit: np.minimum(counts, limit).sum() for limit in set(most.tolist())}
    total = np.array([sums[limit] for limit in most.tolist()]) - np.minimum(own, most)
    unseen = length / (LOSS_OF_EQUAL_RANKS_TO_STALLS * steps)
    rate = np.maximum(usual / steps, (total + 1) / ((peers + unseen) * steps + 2))
    by_rate = binomial_tail(own, steps, rate)
    by_part = binomial_tail(own, own + total, 1 / (1 + peers + unseen))
    p[often] = np.maximum(by_rate, by_part)
    return p
