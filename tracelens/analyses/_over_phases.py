"""Tells a late rank's lateness by phases: a slow device slows all that it computes.

Each phase alone may be too little to stand out of its noise, so ranks are also searched by all phases
together; and once a rank is late for sure, what it loses in its other phases in the same steps belongs
to the same cause.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.analyses._blocks import block_edges, block_medians
from tracelens.analyses._late import WHOLE, Floats, Late
from tracelens.analyses._normal import NATURAL_SPREAD
from tracelens.analyses._robust import deviation

if TYPE_CHECKING:
    from tracelens.analyses._own_time import OwnTime

SAME: Final = 0.5  # overlap, of the shorter one, of two intervals
_CLEAR: Final = 3.0  # standard errors
_ENOUGH: Final = 0.25  # of the run: so many steps outside say what is normal for the rank
_MEDIAN: Final = 1.25  # a median's standard error, as a multiple of a mean's


def spread_over_phases(own: OwnTime, excess: list[Floats], found: list[Late]) -> list[Late]:
    """Return `found` by phases only, each with what the rank loses in further phases meanwhile."""
    named = [late for late in found if late.phase != WHOLE]
    whole = [late for late in found if late.phase == WHOLE and not _explained(late, named)]
    known = {(late.ranks[0], late.phase) for late in named}
    completed = [
        _completed(own, excess, late, known) if late is _largest(late, named) else late
        for late in named
    ]
    return completed + [_named(own, excess, late) for late in whole]


def _explained(late: Late, named: list[Late]) -> bool:
    return any(same_rank(late, other) for other in named)


def same_rank(one: Late, other: Late) -> bool:
    """Say whether two entries are of the same rank, in the same steps by and large."""
    common = len(np.intersect1d(one.touched, other.touched))
    return one.ranks == other.ranks and common >= SAME * min(len(one.touched), len(other.touched))


def by_rank(found: list[Late]) -> list[Late]:
    """Join the phases in which a rank is late at the same time; the largest gives the name."""
    merged: list[Late] = []
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


def _largest(late: Late, named: list[Late]) -> Late:
    same = [other for other in named if same_rank(late, other)]
    return max(same, key=lambda other: float(other.effect.sum()))


def _completed(own: OwnTime, excess: list[Floats], late: Late, known: set[tuple[int, str]]) -> Late:
    """Add the phases that are not told apart but clearly longer in the same steps."""
    rank, shape = late.ranks[0], _shape(late)
    effect, also = late.effect, []
    for phase, values in zip(own.phases, excess, strict=True):
        level = _level(own, values, late)
        if (rank, phase) not in known and level.clear:
            effect = effect + shape * level.height * own.step_ns
            also.append(phase)
    return replace(late, effect=effect, also=(*late.also, *also))


def _named(own: OwnTime, excess: list[Floats], late: Late) -> Late:
    """Name a lateness of all phases together by the one that grew most."""
    heights = [_level(own, values, late).height for values in excess]
    order = np.argsort(heights)[::-1]
    also = tuple(own.phases[row] for row in order[1:] if _level(own, excess[row], late).clear)
    return replace(late, phase=own.phases[order[0]], also=also)


def _shape(late: Late) -> Floats:
    """Return the course of a lateness with a mean of one while it lasts."""
    return np.asarray(late.effect / late.effect[late.touched].max(axis=1).mean())


@dataclass(frozen=True)
class _Level:
    height: float
    clear: bool


def _level(own: OwnTime, values: Floats, late: Late) -> _Level:
    """Return by how much a phase is longer while a rank is late, as a share of the step."""
    rows = np.flatnonzero(own.settled)
    line = values[rows, late.ranks[0]]
    inside = (rows >= late.first) & (rows <= late.last)
    rest = line[~inside]
    enough = len(rest) >= _ENOUGH * len(rows)
    height = float(np.median(line[inside]) - (np.median(rest) if enough else 0.0))
    edges = block_edges(len(rows))
    change = np.diff(block_medians(values[rows], edges), axis=0)
    noise = deviation(change) / np.sqrt(2)
    size = len(rows) / (len(edges) - 1)
    parts = 1 / np.count_nonzero(inside) + (1 / len(rest) if enough else 0.0)
    error = np.sqrt(noise**2 * size * parts + (0.0 if enough else NATURAL_SPREAD**2))
    return _Level(height, height > _CLEAR * _MEDIAN * error)
