"""Migrating delays: nearly always somebody is late for some steps, each time somebody else.

A rank is late for a while if most steps of a few in a row are far beyond its peers. How many in a row
it takes is chosen so that single late steps, however often they come, would hardly do it by chance.
Noise that lasts for some steps migrates, too, but does not go as far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.replay.counterfactual import Episode
from tracelens.stats.null_model import binomial_tail, student_tail
from tracelens.stats.robust import block_medians, deviation, medians

if TYPE_CHECKING:
    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.arrays import Flags, Floats

FEWEST_RANKS: Final = 4
LEAST: Final = 0.05  # of the step
BUSY: Final = 0.4  # of the steps have a rank that is late for a while
MOST_OF_ONE: Final = 0.4  # of all that is late: beyond, that rank is the finding
AT_A_TIME: Final = 1.5  # ranks: more are late together, whoever they are
VISITED: Final = (3, 1 / 8)  # ranks: so many, and such a share of all (or of the visits there are)
ROWS: Final = (5, 6, 8, 10, 12)  # in a row
MOST: Final = 0.8  # of them late
BY_CHANCE: Final = 0.05  # such rows, anywhere in the run
SURE: Final = 1e-4  # the chance that noise which lasts is as late anywhere
_HALF: Final = 0.5  # of how late one usually is: less is noise
_DEVIATIONS: Final = 3.0
_FREEDOM: Final = 60  # degrees of it: how noise is distributed is known from what was seen only
_LEAST_SPREAD: Final = 0.001  # of the step


def find_migrating(own: ComputeTime, excess: Floats, by_phase: list[Floats]) -> Episode | None:
    """Search all phases together, `excess` as shares of the step, [step, rank]."""
    rows = np.flatnonzero(own.settled)
    values = excess[own.settled_rows]
    ranks = values.shape[1]
    spread = deviation(values - medians(values, axis=0))
    far = values > max(LEAST, _DEVIATIONS * spread)
    if ranks < FEWEST_RANKS or far.any(axis=1).mean() < BUSY:
        return None
    length = _in_a_row(float(far.mean()), far.size)
    if length is None or len(rows) < 2 * length:
        return None
    late = _lasting(far, length)
    late = (
        _lasting(far & (values > _HALF * np.median(values[late])), length) if late.any() else late
    )
    if not _migrates(late, length):
        return None
    level = float(np.median(values[late]))
    chance = _as_noise(values, length, level)
    if chance > SURE:
        return None
    visited = np.flatnonzero(late.any(axis=0))
    effect = np.zeros_like(excess)
    effect[rows] = late * level * own.step_ns
    touched = rows[late.any(axis=1)]
    grown = [float(phase[rows][late].mean()) for phase in by_phase]
    return Episode(
        ranks=tuple(int(rank) for rank in visited),
        phase=own.phases[int(np.argmax(grown))],
        first=int(touched[0]),
        last=int(touched[-1]),
        effect=effect,
        pattern="rotating",
        p=chance,
    )


def _migrates(late: Flags, length: int) -> bool:
    """Return whether nearly always one rank is late, and each time another one."""
    counts, busy = late.sum(axis=0), late.any(axis=1)
    least, share = VISITED
    enough = max(least, share * min(late.shape[1], len(late) / length))
    return bool(
        np.count_nonzero(counts) >= enough
        and busy.mean() >= BUSY
        and counts.max() <= MOST_OF_ONE * counts.sum()
        and counts.sum() <= AT_A_TIME * busy.sum()
    )


def _as_noise(values: Floats, length: int, level: float) -> float:
    """Return how likely noise alone is so late for so many steps anywhere, by Student's t."""
    stays = block_medians(
        values, np.append(np.arange(0, len(values) - length, length), len(values))
    )
    spread = max(deviation(stays - medians(stays, axis=0)), _LEAST_SPREAD)
    return min(float(student_tail(level / spread, _FREEDOM)) * stays.size, 1.0)


def _in_a_row(rate: float, places: int) -> int | None:
    """Return how many steps in a row tell more than chance, at the rate of late steps; null if none."""
    for length in ROWS:
        chance = binomial_tail(np.ceil(MOST * length), length, rate)
        if float(chance) * places < BY_CHANCE:
            return length
    return None


def _lasting(far: Flags, length: int) -> Flags:
    """Keep the late steps that belong to some row of `length` steps most of which are late."""
    sums = np.zeros((len(far) + 1, far.shape[1]), np.int32)
    np.cumsum(far, axis=0, out=sums[1:])
    begins = sums[length:] - sums[:-length] >= MOST * length
    ends = np.zeros_like(sums)
    ends[: len(begins)] += begins
    ends[length:] -= begins
    return np.asarray(far & (np.cumsum(ends, axis=0, out=ends)[:-1] > 0))
