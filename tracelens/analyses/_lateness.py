"""From matrices to late ranks: the detectors on every phase, each rank and phase for itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from tracelens.analyses import _detector, _paired, _rotating, _stalled
from tracelens.analyses._blocks import LEAST_BLOCK
from tracelens.analyses._interval import course
from tracelens.analyses._late import WHOLE, Late
from tracelens.analyses._over_phases import spread_over_phases

if TYPE_CHECKING:
    from tracelens.analyses._detector import Scan
    from tracelens.analyses._own_time import OwnTime
    from tracelens.analyses.result import Pattern

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

FALSE_RATE: Final = 0.003  # the chance that anybody is accused wrongly
_MATTER: Final = 16  # ranks: one late one of more hardly moves what is normal
_FEWEST: Final = 3  # ranks tell what is normal
_MAJORITY: Final = 0.6  # of the ranks must be left to compare with
_OF_A_VISIT: Final = 0.3  # of its steps


def find(own: OwnTime) -> list[Late]:
    """Return every rank that is late in a phase, lastingly or now and then."""
    if not own.phases:
        return []
    excess = [_excess(own, values) for values in own.own]
    whole = _excess(own, own.total)
    lasting = _lasting(own, excess, whole)
    wandering = _rotating.find(own, whole, excess)
    found = _stalled.with_stalls(own, excess, whole, lasting)
    if wandering is None:
        return found
    return [wandering, *(late for late in found if not _visit(late, wandering))]


def _visit(late: Late, wandering: Late) -> bool:
    """Say whether a lateness is, for the most part, one stay of a wandering one."""
    rank = late.ranks[0]
    common = np.count_nonzero(wandering.effect[late.touched, rank])
    return bool(common >= _OF_A_VISIT * len(late.touched))


def _excess(own: OwnTime, values: Floats) -> Floats:
    """Return each rank's time beyond its peers in every step, as a share of the step."""
    if len(own.ranks) > 2:
        return _detector.paired_excess(values, own.step_ns)
    difference = np.nan_to_num(values[:, 1] - values[:, 0], nan=0.0) / own.step_ns
    return np.stack([-difference, difference], axis=1)


def _lasting(own: OwnTime, excess: list[Floats], whole: Floats) -> list[Late]:
    """Return ranks that are late for a while: in a phase, or in all of them together."""
    names = [*own.phases, *([WHOLE] if len(own.phases) > 1 else [])]
    searched = [*excess, whole][: len(names)]
    settled = [values[own.settled] for values in searched]
    if len(own.ranks) > 2:
        scans, chance, holds = _among_many(settled)
        shortest = LEAST_BLOCK
    else:
        scans, chance, holds = _of_two(settled)
        shortest = _paired.least_window(len(settled[0]))
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
    """Say whether it matters, and those who are not late still tell what is normal."""
    late, left = np.count_nonzero(known), np.count_nonzero(~known)
    return bool(late * _MATTER >= len(known) and left >= max(_FEWEST, _MAJORITY * len(known)))


def _judged(excess: list[Floats], known: Flags) -> tuple[list[Scan], Floats, Flags]:
    """Judge every rank by those that are not `known` to be late."""
    scans = [_detector.scan(values, known) for values in excess]
    p = np.minimum(np.stack([scan.p for scan in scans]) * _tried(len(scans)), 1.0)
    large = np.stack([scan.mean for scan in scans]) >= _detector.least_effect(p.shape[1])
    worst = np.where(large, p, 1.0).min(axis=0)
    late = _detector.discoveries(worst, FALSE_RATE)
    return scans, p, large & late & (p <= worst[late].max(initial=0.0))


def _tried(searches: int) -> Floats:
    """Return by how much p-values rise: half of the chance is for all phases together, the last."""
    if searches == 1:
        return np.ones((1, 1))
    return np.array([[2.0 * (searches - 1)]] * (searches - 1) + [[2.0]])


def _of_two(excess: list[Floats]) -> tuple[list[Scan], Floats, npt.NDArray[np.bool_]]:
    """Judge two ranks: as `_among_many`."""
    scans = [_paired.scan(values[:, 1]) for values in excess]
    chance = np.minimum(np.stack([scan.p for scan in scans]) * len(scans), 1.0)
    large = np.stack([scan.mean for scan in scans]) >= _paired.LEAST_EFFECT
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

    def named(self, phase: str, p: float) -> Late:
        return Late(
            (self.rank,), phase, self.first, self.last, self.effect, self.pattern, p, self.unsure
        )


def _followed(own: OwnTime, excess: Floats, scan: Scan, rank: int) -> _Followed:
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
    """Say whether a lateness began with the run, by all that the warm-up shows."""
    return bool(len(warm_up)) and float(np.median(warm_up)) > level / 2
