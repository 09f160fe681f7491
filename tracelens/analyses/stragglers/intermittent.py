"""Intermittent stalls: a rank far behind in some steps, too few and scattered for a lasting delay.

Two questions are asked of each rank: does it stall more often than its peers in the whole run, and is
there a while in which it stalls more often than they and itself at other times? Then, which phase
stalls: a rank that is stopped stalls in any of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.replay.counterfactual import Episode
from tracelens.stats.changepoint import greatest_run
from tracelens.stats.null_model import binomial_tail
from tracelens.stats.robust import medians

if TYPE_CHECKING:
    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.arrays import Flags, Floats, Indices, Ints


LEAST_STALL: Final = 0.08  # of the step
LEAST_COUNT: Final = 4
_ONE_STALL: Final = 4  # steps
WRONG: Final = 0.0002  # of the searches, of which there is one a phase
_DEVIATIONS: Final = 6
_ONE_SIGMA: Final = 0.841  # so much of normal noise is below one deviation:
_OF_RANKS: Final = {3: 1.33}  # one of three is the median and deviates by nothing
_MORE_OFTEN: Final = 3  # than the stalls of its peers


@dataclass(frozen=True)
class RankStalls:
    """One rank's stalls: their rows, how likely chance is, and every how many rows (null: irregular)."""

    rank: int
    rows: Ints
    p: float
    period: int | None


@dataclass(frozen=True)
class _Stretch:
    """First and last row with a stall, how often it stalls at other times, and how likely chance is."""

    first: int = 0
    last: int = 0
    rate: float = 1.0
    p: float = 1.0


def find_stalls(excess: Floats) -> list[RankStalls]:
    """Find ranks that stall clearly more often than any but a quarter of their peers, [step, rank]."""
    steps, ranks = excess.shape
    apart_by = excess - medians(excess, axis=0)
    above = np.quantile(apart_by, _ONE_SIGMA, overwrite_input=True)
    stalled = excess > max(LEAST_STALL, _DEVIATIONS * _OF_RANKS.get(ranks, 1.0) * float(above))
    apart = _apart(stalled)
    counts = apart.sum(axis=0)
    usual = _usual(counts)
    scattered = stalled.sum(axis=0) < steps / 2
    often = (counts >= np.maximum(LEAST_COUNT, _MORE_OFTEN * usual)) & scattered
    p = _chances(counts, usual, steps, often)
    found = []
    for rank in np.flatnonzero(counts >= LEAST_COUNT).tolist():
        rows, chance = np.flatnonzero(stalled[:, rank]), float(p[rank])
        if not (often[rank] and chance * ranks < WRONG):
            peers = float(np.delete(counts, rank).mean())
            seen = _most_striking(np.flatnonzero(apart[:, rank]), (peers + 1) / (steps + 1), steps)
            rows, chance = _stalls_within(rows, seen), seen.p
        if chance * ranks < WRONG:
            found.append(RankStalls(rank, rows, chance * ranks, _period(rows)))
    return found


def _apart(stalled: Flags) -> Flags:
    """Keep stalls that are four steps or more apart: one disturbance may last longer than a step."""
    kept = np.zeros_like(stalled)
    last = np.full(stalled.shape[1], -_ONE_STALL)
    for row in np.flatnonzero(stalled.any(axis=1)):
        kept[row] = stalled[row] & (row - last >= _ONE_STALL)
        last[kept[row]] = row
    return kept


def _most_striking(starts: Ints, usual: float, steps: int) -> _Stretch:
    """Return the while in which a rank stalls most strikingly, and how likely chance is.

    Of each number of stalls the shortest stretch is tried that begins and ends with one, at the rate of
    the peers or of the rank at other times. Chernoff's bound says quickly which is the most striking.
    """
    numbers = np.arange(LEAST_COUNT, len(starts) + 1)
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
    place = np.ceil(0.75 * (len(counts) - 2)).astype(int)
    # Without itself, a rank at or below that place has the next one there.
    usual = np.where(counts <= ordered[place], ordered[place + 1], ordered[place])
    return np.asarray(usual, np.float64)


def _chances(counts: Ints, usual: Floats, steps: int, often: Flags) -> Floats:
    """Return how likely so many stalls are; 1 for ranks that do not stall `often`.

    They must be too many for the usual rate, and too large a part of all stalls of this rank and its
    peers, since that rate is itself known from few of them. Other ranks that stall count little.
    """
    p = np.ones(len(counts))
    if not often.any():
        return p
    peers, own, usual = len(counts) - 1, counts[often], usual[often]
    most = usual + LEAST_COUNT - 1
    sums = {limit: np.minimum(counts, limit).sum() for limit in set(most.tolist())}
    total = np.array([sums[limit] for limit in most.tolist()]) - np.minimum(own, most)
    rate = np.maximum(usual / steps, (total + 1) / (peers * steps + 2))
    by_rate = binomial_tail(own, steps, rate)
    by_part = binomial_tail(own, own + total, 1 / (1 + peers))
    p[often] = np.maximum(by_rate, by_part)
    return p


def _period(rows: Ints) -> int | None:
    """Return the step between stalls if nearly all keep it."""
    gaps = np.diff(rows)
    period = int(np.median(gaps))
    regular = np.mean(np.abs(gaps - np.maximum(np.rint(gaps / period), 1) * period) <= 1)
    return period if period > 2 and regular >= 0.8 else None


_MOST_IN_A_PHASE: Final = (
    0.7  # of what a rank's stalls cost, in one phase: it is that phase that stalls
)
_A_PART: Final = 0.1  # of it, to be mentioned
_AS_MUCH: Final = 0.8
_FAR_MORE: Final = 2.0
_STILL_DELAYED: Final = 0.4  # of a lateness,
_OF_A_STALL: Final = 0.25  # and of a stall


def with_stalls(
    own: ComputeTime, excess: list[Floats], whole: Floats, lasting: list[Episode]
) -> list[Episode]:
    """Return who is late with who stalls, in phases in which they are not late anyway.

    `excess`, one a phase, and `whole` are [step, rank]. Far stalls raise the level around them: where a
    rank loses as much by stalls between steps without one, or far more, they are what is wrong with it.
    """
    scattered = _stalls_of_ranks(own, excess, whole)
    lasting = [
        one
        for one in lasting
        if not any(_explained_by_stalls(own, stalls, one, whole) for stalls in scattered)
    ]
    taken = {(one.ranks, one.phase) for one in lasting}
    named = [one for one in _stalls_of_phases(own, excess) if (one.ranks, one.phase) not in taken]
    late = {one.ranks for one in lasting}
    scattered = [
        one for one in scattered if one.ranks not in late and not _is_of_one_phase(one, named)
    ]
    ranks = {one.ranks for one in scattered}
    return [*lasting, *(one for one in named if one.ranks not in ranks), *scattered]


def _explained_by_stalls(
    own: ComputeTime, stalls: Episode, lasting: Episode, excess: Floats
) -> bool:
    """Return whether a rank's stalls explain its loss better than a delay that lasts."""
    if stalls.ranks != lasting.ranks:
        return False
    if _delayed_between(stalls, lasting, excess[:, lasting.ranks[0]] * own.step_ns):
        return False
    now_and_then = len(stalls.touched) < _MOST_IN_A_PHASE * (stalls.last - stalls.first + 1)
    enough = _AS_MUCH if now_and_then else _FAR_MORE
    return _loss(stalls) > enough * _loss(lasting)


def _delayed_between(stalls: Episode, lasting: Episode, excess: Floats) -> bool:
    """Return whether a rank is late between its stalls, too: then it is late for a while.

    `excess` is that of the rank, in nanoseconds.
    """
    between = np.setdiff1d(lasting.touched, stalls.touched)
    if not len(between):
        return False
    level, stall = (late.effect[:, late.ranks[0]] for late in (lasting, stalls))
    least = max(_STILL_DELAYED * level[between].mean(), _OF_A_STALL * stall[stalls.touched].mean())
    return bool(np.median(excess[between]) > least)


def _stalls_of_phases(own: ComputeTime, excess: list[Floats]) -> list[Episode]:
    """Return ranks that stall in a phase."""
    rows = np.flatnonzero(own.settled)
    return [
        _stall_episode(own, values, stalls, rows, (phase,))
        for phase, values in zip(own.phases, excess, strict=True)
        for stalls in find_stalls(values[own.settled_rows])
    ]


def _stalls_of_ranks(own: ComputeTime, excess: list[Floats], whole: Floats) -> list[Episode]:
    """Return ranks that stall in all phases together."""
    rows = np.flatnonzero(own.settled)
    if len(own.phases) < 2:
        return []
    return [
        _stall_episode(
            own, whole, stalls, rows, _by_loss(own, excess, rows[stalls.rows], stalls.rank)
        )
        for stalls in find_stalls(whole[own.settled_rows])
    ]


def _stall_episode(
    own: ComputeTime,
    values: Floats,
    stalls: RankStalls,
    settled: Indices,
    names: tuple[str, ...],
) -> Episode:
    """Put a rank's stalls into rows of all steps."""
    hit = settled[stalls.rows]
    effect = np.zeros(own.total.shape)
    effect[hit, stalls.rank] = values[hit, stalls.rank] * own.step_ns
    return Episode(
        (stalls.rank,),
        names[0],
        int(hit[0]),
        int(hit[-1]),
        effect,
        "sparse",
        stalls.p,
        period=stalls.period,
        also=names[1:],
    )


def _by_loss(own: ComputeTime, excess: list[Floats], hit: Indices, rank: int) -> tuple[str, ...]:
    """Return the phases in which a rank loses a good part in these steps, the largest first."""
    losses = [float(values[hit, rank].sum()) for values in excess]
    order = np.argsort(losses)[::-1]
    return tuple(own.phases[row] for row in order if losses[row] >= _A_PART * sum(losses))


def _is_of_one_phase(whole: Episode, named: list[Episode]) -> bool:
    """Return whether a rank stalls in one phase only, where most of what it loses by stalls is lost."""
    mine = [one for one in named if one.ranks == whole.ranks]
    return len(mine) == 1 and _loss(mine[0]) >= _MOST_IN_A_PHASE * _loss(whole)


def _loss(late: Episode) -> float:
    return float(late.effect.sum())
