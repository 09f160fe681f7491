"""Finds ranks that are late for a while, among three or more, step by step against their peers.

Each step is compared across ranks (so what all share cancels), blocks of steps are condensed to their
median (so single spikes cancel), and windows of all lengths and places are scanned. What difference
between ranks is normal is learnt from the ranks themselves, with a prior from the noise between blocks,
and the p-value pays for every window tried. A window is also held against the same rank outside of it:
there, lasting differences between ranks cancel, so less is enough. A sign test guards against noise with
heavy tails: in a late window nearly every step is late. docs/analyses.md gives formulas and sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelens.analyses._blocks import LEAST_BLOCK, Noise, block_edges, block_levels, of_few
from tracelens.analyses._special import binomial_tail, student_tail

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

NATURAL_SPREAD: Final = 0.003  # of the step, between ranks that are equal
NATURAL_WANDER: Final = 0.001  # of the step: how much that changes with time
_SPREAD_FREEDOM: Final = 8  # nobody knows how equal ranks are,
_NOISE_FREEDOM: Final = 24  # but noise within a rank tells well how much its means vary,
_CONTRADICTED: Final = 1.5  # unless the variance seen is so many times as large
_SEVERAL: Final = 6  # ranks can contradict anything
_HARDLY_FAR: Final = 2.5  # deviations: no p-value below can become a finding
_MOST_FREEDOM: Final = 60
_TO_SIGMA: Final = 1.4826  # a median absolute deviation, as a standard deviation
_HOPELESS: Final = 0.05  # no p-value above it can become a finding
_STEPS_ALIKE: Final = 3  # neighbouring steps are correlated: so many count as one
_LONGEST_CHANGE: Final = 0.75  # of the run: beyond, too little is left to compare with
_STATISTICS: Final = 2  # against the other ranks, and against the rank itself outside


@dataclass(frozen=True)
class Windows:
    """Windows of steps (rows), inclusive, and how far each rank is beyond what it is held against."""

    first: Rows
    last: Rows
    mean: Floats  # [window, rank]
    middle: Floats  # halfway between that and the mean: who is above is late
    scale: Floats  # what is normal, the same for all ranks of a window
    p: Floats


@dataclass(frozen=True)
class Scan:
    """The least likely window of every rank; `mean` is the excess in it, `scale` what is normal."""

    p: Floats
    mean: Floats
    scale: Floats
    first: Rows
    last: Rows


def paired_excess(own: Floats, step_ns: float) -> Floats:
    """Return each rank's own time beyond the step's median rank, as a share of `step_ns`.

    Both are [step, rank]; where a rank lacks a step (nan) it counts as the median.
    """
    nobody = np.isnan(own).all(axis=1, keepdims=True)  # a step in which the job broke off
    own = np.where(nobody, 0.0, own)
    excess: Floats = (own - np.nanmedian(own, axis=1, keepdims=True)) / step_ns
    return np.nan_to_num(excess, nan=0.0)


def least_effect(ranks: int) -> float:
    """Return the smallest excess worth reporting, as a share of the step: 1.5 %, more for few ranks."""
    return 0.015 * (1 + 24 / ranks**2)


def scan(excess: Floats) -> Scan:
    """Search every rank's excess, [step, rank], for the window that chance explains worst."""
    windows = _windows(excess)
    pooled = np.sort(excess, axis=None)
    chosen = [_least_likely(excess, pooled, windows, rank) for rank in range(excess.shape[1])]
    rows = np.array([row for row, _ in chosen])
    return Scan(
        p=np.array([p for _, p in chosen]),
        mean=windows.mean[rows, np.arange(len(rows))],
        scale=windows.scale[rows, 0],
        first=windows.first[rows],
        last=windows.last[rows],
    )


def _windows(excess: Floats) -> Windows:
    """Try windows of all lengths (2, 4, 8 ... blocks, and everything) at every quarter length."""
    edges = block_edges(len(excess))
    blocks = block_levels(excess, edges)
    blocks = blocks - np.median(blocks, axis=1, keepdims=True)
    count = len(blocks)
    sums = np.concatenate([np.zeros((1, blocks.shape[1])), np.cumsum(blocks, axis=0)])
    lengths = _lengths(count)
    noise, parts = Noise.of(blocks), []
    for length in lengths:
        tried = 2 * count / length * len(lengths) * _STATISTICS
        starts = np.arange(0, count - length + 1, max(1, length // 4))
        place = _Place(edges[starts], edges[starts + length] - 1, count / length, tried)
        inside = (sums[starts + length] - sums[starts]) / length
        alone = noise.variance(length)
        prior = _Prior(alone + NATURAL_SPREAD**2, _SPREAD_FREEDOM)
        parts.append(_judged(place, inside, np.zeros_like(inside), prior))
        if length <= _LONGEST_CHANGE * count:
            outside = (sums[-1] - inside * length) / (count - length)
            both = alone + noise.variance(count - length)
            prior = _Prior(both + NATURAL_WANDER**2, _NOISE_FREEDOM)
            parts.append(_judged(place, inside, outside, prior))
    names = ("first", "last", "mean", "middle", "scale", "p")
    return Windows(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True)
class _Place:
    """Windows of one length: their rows, how many are independent, and how many are tried."""

    first: Rows
    last: Rows
    independent: float
    tried: float


@dataclass(frozen=True)
class _Prior:
    """What is expected before looking at how far ranks lie apart, and how firmly."""

    variance: float
    freedom: float


def _lengths(count: int) -> list[int]:
    """Return lengths of windows in blocks: each about the root of two times the one before."""
    half_powers = {round(2 ** (half / 2)) for half in range(2, 2 * count.bit_length())}
    return [*sorted(length for length in half_powers if length < count), count]


def _judged(place: _Place, inside: Floats, usual: Floats, prior: _Prior) -> Windows:
    """Judge means, [window, rank], against what is usual."""
    means = inside - usual
    means = means - np.median(means, axis=1, keepdims=True)
    scale, freedom = _scale(means, prior, place.independent)
    p = np.ones_like(means)
    far = means > _HARDLY_FAR * scale
    p[far] = np.minimum(student_tail(means[far] / scale, freedom) * place.tried, 1.0)
    scales = np.full((len(means), 1), scale)
    return Windows(place.first, place.last, means, usual + means / 2, scales, p)


def _scale(means: Floats, prior: _Prior, independent: float) -> tuple[float, float]:
    """Return how far equal ranks' means lie apart, and the degrees of freedom of that estimate.

    A prior that the ranks contradict is held less firmly.
    """
    ranks = means.shape[1]
    observed = of_few(ranks) * _TO_SIGMA * np.median(np.abs(means))
    freedom = 0.37 * ranks * independent
    agrees = observed**2 <= _CONTRADICTED * prior.variance
    firm = prior.freedom if agrees and ranks >= _SEVERAL else _SPREAD_FREEDOM
    both = (freedom * observed**2 + firm * prior.variance) / (freedom + firm)
    return float(np.sqrt(both)), min(freedom, _MOST_FREEDOM) + firm


def _least_likely(
    excess: Floats, pooled: Floats, windows: Windows, rank: int
) -> tuple[np.intp, float]:
    """Return a rank's window with the smallest p-value that its steps confirm one by one."""
    p = windows.p[:, rank]
    order = np.argsort(p, kind="stable")
    best, lowest = order[0], 1.0
    for row in order:
        if p[row] >= min(lowest, _HOPELESS):
            break
        level = windows.middle[row, rank]
        inside = excess[windows.first[row] : windows.last[row] + 1, rank]
        sign = _sign_tail(inside, excess[:, rank], pooled, level)
        tried = 2 * len(excess) / len(inside)
        combined = max(float(p[row]), sign * tried)
        if combined < lowest:
            best, lowest = row, combined
    return best, lowest


def _sign_tail(inside: Floats, own: Floats, pooled: Floats, level: float) -> float:
    """Return how likely so many steps above `level` are, judged by the rank outside and its peers."""
    above = np.count_nonzero(inside > level)
    own_above = np.count_nonzero(own > level)
    peers = len(pooled) - np.searchsorted(pooled, level, side="right") - own_above
    outside = len(own) - len(inside)
    peer_rate = (peers + 1) / (len(pooled) - len(own) + 2)
    own_rate = (own_above - above) / outside if outside >= LEAST_BLOCK else 0.0
    rate = max(peer_rate, own_rate)
    trials = len(inside) / _STEPS_ALIKE
    return float(binomial_tail(above / _STEPS_ALIKE, trials, rate))


def discoveries(p: Floats, rate: float) -> npt.NDArray[np.bool_]:
    """Say which p-values hold if the chance that any of them is wrong may be `rate` (Holm 1979)."""
    order = np.argsort(p, kind="stable")
    fails = np.flatnonzero(p[order] * np.arange(p.size, 0, -1) > rate)
    holds = np.zeros(p.size, np.bool_)
    holds[order[: fails[0] if fails.size else p.size]] = True
    return holds
