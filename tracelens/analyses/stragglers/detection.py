"""Detection: from matrices to stragglers, each rank and phase for itself, and the delay told by phases.

Each phase alone may be too little to stand out of its noise, so ranks are also searched by all phases
together; and once a rank is late for sure, what it loses in its other phases in the same steps belongs
to the same cause: a slow device slows all that it computes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.analyses.stragglers import intermittent, migrating
from tracelens.replay.counterfactual import ALL_PHASES, Episode
from tracelens.stats import window_scan
from tracelens.stats.changepoint import course
from tracelens.stats.null_model import BETWEEN_RANK_SIGMA
from tracelens.stats.robust import LEAST_BLOCK, block_edges, block_medians, deviation

if TYPE_CHECKING:
    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.arrays import Flags, Floats
    from tracelens.model.findings import Pattern
    from tracelens.stats.window_scan import Scan


FALSE_RATE: Final = 0.003  # the chance that anybody is accused wrongly
_MATTER: Final = 16  # ranks: one late one of more hardly moves what is normal
_FEWEST: Final = 3  # ranks tell what is normal
_MAJORITY: Final = 0.6  # of the ranks must be left to compare with
_OF_A_VISIT: Final = 0.3  # of its steps


def find_episodes(own: ComputeTime) -> list[Episode]:
    """Return every rank that is late in a phase, lastingly or now and then."""
    if not own.phases:
        return []
    excess = [_residuals(own, values) for values in own.own]
    whole = _residuals(own, own.total)
    lasting = _lasting(own, excess, whole)
    wandering = migrating.find_migrating(own, whole, excess)
    found = intermittent.with_stalls(own, excess, whole, lasting)
    if wandering is None:
        return found
    return [wandering, *(late for late in found if not _is_visit(late, wandering))]


def _is_visit(late: Episode, wandering: Episode) -> bool:
    """Return whether a lateness is, for the most part, one stay of a wandering one."""
    rank = late.ranks[0]
    common = np.count_nonzero(wandering.effect[late.touched, rank])
    return bool(common >= _OF_A_VISIT * len(late.touched))


def _residuals(own: ComputeTime, values: Floats) -> Floats:
    """Return each rank's time beyond its peers in every step, as a share of the step."""
    if len(own.ranks) > 2:
        return window_scan.peer_residuals(values, own.step_ns)
    difference = np.nan_to_num(values[:, 1] - values[:, 0], nan=0.0) / own.step_ns
    return np.stack([-difference, difference], axis=1)


def _lasting(own: ComputeTime, excess: list[Floats], whole: Floats) -> list[Episode]:
    """Return ranks that are late for a while: in a phase, or in all of them together."""
    names = [*own.phases, *([ALL_PHASES] if len(own.phases) > 1 else [])]
    searched = [*excess, whole][: len(names)]
    settled = [values[own.settled_rows] for values in searched]
    if len(own.ranks) > 2:
        scans, chance, holds = _among_many(settled)
        shortest = LEAST_BLOCK
    else:
        scans, chance, holds = _of_two(settled)
        shortest = window_scan.least_window_of_pair(len(settled[0]))
    found = []
    for row, rank in np.argwhere(holds):
        late = _followed(own, searched[row], scans[row], int(rank))
        if late.last - late.first + 1 >= shortest:
            found.append(late.named(names[row], float(chance[row, rank])))
    return spread_over_phases(own, excess, found)


def _among_many(excess: list[Floats]) -> tuple[list[Scan], Floats, Flags]:
    """Judge three ranks or more: scans, p-values and what holds, [phase, rank].

    Ranks that are late for sure must not be what others are held against, so these are judged again
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
    return bool(late * _MATTER >= len(known) and left >= max(_FEWEST, _MAJORITY * len(known)))


def _judged(excess: list[Floats], known: Flags) -> tuple[list[Scan], Floats, Flags]:
    """Judge every rank by those that are not `known` to be late."""
    scans = [window_scan.scan_ranks(values, known) for values in excess]
    p = np.minimum(np.stack([scan.p for scan in scans]) * _tried(len(scans)), 1.0)
    large = np.stack([scan.mean for scan in scans]) >= window_scan.least_effect(p.shape[1])
    worst = np.where(large, p, 1.0).min(axis=0)
    late = window_scan.discoveries(worst, FALSE_RATE)
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
    large = np.stack([scan.mean for scan in scans]) >= window_scan.LEAST_EFFECT_OF_PAIR
    return scans, chance, (chance < FALSE_RATE) & large


@dataclass(frozen=True)
class _Followed:
    """A lateness from edge to edge, not yet said of which phase."""

    rank: int
    first: int
    last: int
    effect: Floats
    pattern: Pattern
    unsure: float = 0.0

    def named(self, phase: str, p: float) -> Episode:
        return Episode(
            (self.rank,), phase, self.first, self.last, self.effect, self.pattern, p, self.unsure
        )


def _followed(own: ComputeTime, excess: Floats, scan: Scan, rank: int) -> _Followed:
    """Follow what was found in a window to its edges, in rows of all steps."""
    rows = np.flatnonzero(own.settled)
    shape = course(excess[rows, rank], int(scan.first[rank]), int(scan.last[rank]))
    first, last = int(rows[shape.first]), int(rows[shape.last])
    if shape.first == 0 and _since_the_start(excess[:first, rank], shape.level):
        first = 0
    line = np.zeros(len(own.steps))
    line[first : last + 1] = shape.level
    if shape.pattern == "drifting":
        line[rows] = shape.effect
    effect = np.zeros(own.total.shape)
    effect[:, rank] = line * own.step_ns
    unsure = float(scan.scale[rank]) / shape.level if shape.level > 0 else 0.0
    return _Followed(rank, first, last, effect, shape.pattern, unsure)


def _since_the_start(warm_up: Floats, level: float) -> bool:
    """Return whether a lateness began with the run, by all that the warm-up shows."""
    return bool(len(warm_up)) and float(np.median(warm_up)) > level / 2


SAME_STEPS: Final = 0.5  # overlap, of the shorter one, of two intervals
_CLEAR: Final = 3.0  # standard errors
_ENOUGH_OUTSIDE: Final = 0.25  # of the run: so many steps outside say what is normal for the rank
_MEDIAN: Final = 1.25  # a median's standard error, as a multiple of a mean's


def spread_over_phases(
    own: ComputeTime, excess: list[Floats], found: list[Episode]
) -> list[Episode]:
    """Return `found` by phases only, each with what the rank loses in further phases meanwhile."""
    named = [late for late in found if late.phase != ALL_PHASES]
    whole = [late for late in found if late.phase == ALL_PHASES and not _explained(late, named)]
    known = {(late.ranks[0], late.phase) for late in named}
    completed = [
        _completed(own, excess, late, known) if late is _largest(late, named) else late
        for late in named
    ]
    return completed + [_named(own, excess, late) for late in whole]


def _explained(late: Episode, named: list[Episode]) -> bool:
    return any(same_rank(late, other) for other in named)


def same_rank(one: Episode, other: Episode) -> bool:
    """Return whether two entries are of the same rank, in the same steps by and large."""
    common = len(np.intersect1d(one.touched, other.touched))
    return one.ranks == other.ranks and common >= SAME_STEPS * min(
        len(one.touched), len(other.touched)
    )


def joined_by_rank(found: list[Episode]) -> list[Episode]:
    """Join the phases in which a rank is late at the same time; the largest gives the name."""
    merged: list[Episode] = []
    for late in sorted(found, key=lambda late: -float(late.effect.sum())):
        same = (i for i, main in enumerate(merged) if same_rank(main, late))
        index = next(same, None)
        if index is None:
            merged.append(late)
            continue
        main = merged[index]
        also = tuple(dict.fromkeys((*main.also, late.phase, *late.also)))
        merged[index] = replace(main, effect=main.effect + late.effect, also=also)
    return merged


def _largest(late: Episode, named: list[Episode]) -> Episode:
    same = [other for other in named if same_rank(late, other)]
    return max(same, key=lambda other: float(other.effect.sum()))


def _completed(
    own: ComputeTime, excess: list[Floats], late: Episode, known: set[tuple[int, str]]
) -> Episode:
    """Add the phases that are not told apart but clearly longer in the same steps."""
    rank, shape = late.ranks[0], _shape(late)
    effect, also = late.effect, []
    for phase, values in zip(own.phases, excess, strict=True):
        level = _level(own, values, late)
        if (rank, phase) not in known and level.clear:
            effect = effect + shape * level.height * own.step_ns
            also.append(phase)
    return replace(late, effect=effect, also=(*late.also, *also))


def _named(own: ComputeTime, excess: list[Floats], late: Episode) -> Episode:
    """Name a lateness of all phases together by the one that grew most."""
    heights = [_level(own, values, late).height for values in excess]
    order = np.argsort(heights)[::-1]
    also = tuple(own.phases[row] for row in order[1:] if _level(own, excess[row], late).clear)
    return replace(late, phase=own.phases[order[0]], also=also)


def _shape(late: Episode) -> Floats:
    """Return the course of a lateness with a mean of one while it lasts."""
    return np.asarray(late.effect / late.effect[late.touched].max(axis=1).mean())


@dataclass(frozen=True)
class _Level:
    height: float
    clear: bool


def _level(own: ComputeTime, values: Floats, late: Episode) -> _Level:
    """Return by how much a phase is longer while a rank is late, as a share of the step."""
    rows = np.flatnonzero(own.settled)
    line = values[rows, late.ranks[0]]
    inside = (rows >= late.first) & (rows <= late.last)
    rest = line[~inside]
    enough = len(rest) >= _ENOUGH_OUTSIDE * len(rows)
    height = float(np.median(line[inside]) - (np.median(rest) if enough else 0.0))
    edges = block_edges(len(rows))
    change = np.diff(block_medians(values[own.settled_rows], edges), axis=0)
    noise = deviation(change) / np.sqrt(2)
    size = len(rows) / (len(edges) - 1)
    parts = 1 / np.count_nonzero(inside) + (1 / len(rest) if enough else 0.0)
    error = np.sqrt(noise**2 * size * parts + (0.0 if enough else BETWEEN_RANK_SIGMA**2))
    return _Level(height, height > _CLEAR * _MEDIAN * error)
