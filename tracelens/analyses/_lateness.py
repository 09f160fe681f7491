"""From matrices to late ranks: the detectors on every phase, and what they found put together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from tracelens.analyses import _detector, _paired, _sparse
from tracelens.analyses._interval import course

if TYPE_CHECKING:
    from tracelens.analyses._own_time import OwnTime
    from tracelens.analyses.result import Pattern

Floats = npt.NDArray[np.float64]

FALSE_RATE: Final = 0.01  # of what is reported may be chance
_SAME_TIME: Final = 0.6  # overlap of two intervals, of both together, that makes them one
_FEW_STEPS: Final = 0.25  # of the run: how long a rotating lateness stays on a rank
_SAME_RANK: Final = 0.5  # overlap, of the shorter one, of two phases of a rank


@dataclass(frozen=True)
class Late:
    """Ranks that are late in a phase in the same steps; numbers are columns and rows of `OwnTime`.

    `effect` is the lateness in nanoseconds, [step, rank], 0 outside; `also` names further phases of the
    same ranks whose lateness is part of it.
    """

    ranks: tuple[int, ...]
    phase: str
    first: int
    last: int
    effect: Floats
    pattern: Pattern
    p: float
    period: int | None = None
    also: tuple[str, ...] = ()

    @property
    def touched(self) -> npt.NDArray[np.intp]:
        """Rows in which it happens."""
        return np.flatnonzero(self.effect.any(axis=1))


def find(own: OwnTime) -> list[Late]:
    """Return who is late, in which phase and steps; ranks that are late together are one entry."""
    single = _lasting(own)
    single += _stalls(own, single)
    merged = _by_rank(single)
    rotating = _rotating(own, merged)
    return [rotating] if rotating else _by_time(merged)


def _excess(own: OwnTime, phase: int) -> Floats:
    """Return each rank's time beyond its peers in every step, as a share of the step."""
    values = own.own[phase]
    if len(own.ranks) > 2:
        return _detector.paired_excess(values, own.step_ns)
    difference = np.nan_to_num(values[:, 1] - values[:, 0], nan=0.0) / own.step_ns
    return np.stack([-difference, difference], axis=1)


def _lasting(own: OwnTime) -> list[Late]:
    """Return ranks late for a while, one entry for each rank and phase."""
    rows = np.flatnonzero(own.settled)
    pair = len(own.ranks) == 2
    excess = [_excess(own, phase) for phase in range(len(own.phases))]
    settled = [values[rows] for values in excess]
    scans = [_paired.scan(part[:, 1]) if pair else _detector.scan(part) for part in settled]
    if not scans:
        return []
    p = np.stack([scan.p for scan in scans])
    effect = np.stack([scan.mean for scan in scans])
    least = _paired.LEAST_EFFECT if pair else _detector.least_effect(len(own.ranks))
    chance = np.minimum(p * len(scans), 1.0) if pair else p
    holds = chance < FALSE_RATE if pair else _detector.discoveries(p, FALSE_RATE)
    found = []
    for phase, rank in np.argwhere(holds & (effect >= least)):
        values = settled[phase][:, rank]
        shape = course(values, int(scans[phase].first[rank]), int(scans[phase].last[rank]))
        first, last = int(rows[shape.first]), int(rows[shape.last])
        first = _into_warm_up(excess[phase][:, rank], first, rows, shape.level)
        line = np.zeros(len(own.steps))
        line[first : last + 1] = shape.level
        if shape.pattern == "drifting":
            line[rows] = shape.effect
        matrix = np.zeros(own.total.shape)
        matrix[:, rank] = line * own.step_ns
        found.append(
            Late(
                (int(rank),),
                own.phases[phase],
                first,
                last,
                matrix,
                shape.pattern,
                float(chance[phase, rank]),
            )
        )
    return found


def _into_warm_up(excess: Floats, first: int, settled: npt.NDArray[np.intp], level: float) -> int:
    """Let a lateness begin with the run if it does so for all that the warm-up shows."""
    before = excess[:first]
    if first == settled[0] and len(before) and np.median(before) > level / 2:
        return 0
    return first


def _stalls(own: OwnTime, known: list[Late]) -> list[Late]:
    """Return ranks that stall now and then, in phases in which they are not late anyway."""
    rows = np.flatnonzero(own.settled)
    taken = {(late.ranks[0], late.phase) for late in known}
    found = []
    for phase, name in enumerate(own.phases):
        excess = _excess(own, phase)
        for stalls in _sparse.find(excess[rows]):
            if (stalls.rank, name) in taken:
                continue
            hit = rows[stalls.rows]
            matrix = np.zeros(own.total.shape)
            matrix[hit, stalls.rank] = excess[hit, stalls.rank] * own.step_ns
            first, last = int(hit[0]), int(hit[-1])
            found.append(
                Late((stalls.rank,), name, first, last, matrix, "sparse", stalls.p, stalls.period)
            )
    return found


def _by_rank(found: list[Late]) -> list[Late]:
    """Join the phases in which a rank is late at the same time; the largest gives the name."""
    merged: list[Late] = []
    for late in sorted(found, key=lambda late: -late.effect.sum()):
        for index, main in enumerate(merged):
            shorter = min(len(main.touched), len(late.touched))
            common = len(np.intersect1d(main.touched, late.touched))
            if main.ranks == late.ranks and common >= _SAME_RANK * shorter:
                also = (*main.also, late.phase)
                merged[index] = replace(main, effect=main.effect + late.effect, also=also)
                break
        else:
            merged.append(late)
    return merged


def _by_time(found: list[Late]) -> list[Late]:
    """Join ranks that are late in the same phase and steps: only together is their mend felt."""
    groups: list[Late] = []
    for late in found:
        for index, group in enumerate(groups):
            if group.phase == late.phase and _alike(group, late):
                groups[index] = replace(
                    group,
                    ranks=tuple(sorted((*group.ranks, *late.ranks))),
                    first=min(group.first, late.first),
                    last=max(group.last, late.last),
                    effect=group.effect + late.effect,
                    p=max(group.p, late.p),
                    also=tuple(dict.fromkeys((*group.also, *late.also))),
                )
                break
        else:
            groups.append(late)
    return groups


def _alike(one: Late, other: Late) -> bool:
    both = len(np.intersect1d(one.touched, other.touched))
    return both >= _SAME_TIME * len(np.union1d(one.touched, other.touched))


def _rotating(own: OwnTime, found: list[Late]) -> Late | None:
    """Return one entry for a lateness that wanders from rank to rank, if it does."""
    short = _FEW_STEPS * np.count_nonzero(own.settled)
    phases = {late.phase for late in found}
    ranks = {late.ranks[0] for late in found}
    wanders = len(ranks) >= max(3, len(own.ranks) / 8) and len(phases) == 1
    brief = all(
        late.pattern == "transient" and late.last - late.first + 1 < short for late in found
    )
    if not (wanders and brief) or any(_alike(a, b) for a in found for b in found if a is not b):
        return None
    effect = np.sum([late.effect for late in found], axis=0)
    touched = np.flatnonzero(effect.any(axis=1))
    return Late(
        ranks=tuple(sorted(ranks)),
        phase=phases.pop(),
        first=int(touched[0]),
        last=int(touched[-1]),
        effect=effect,
        pattern="rotating",
        p=max(late.p for late in found),
    )
