"""Which ranks stall now and then, in which phase: a rank that is stopped stalls in any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.analyses import _sparse
from tracelens.analyses._late import Late

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens.analyses._own_time import OwnTime
    from tracelens.analyses._sparse import Stalls

    Floats = npt.NDArray[np.float64]

_MOST: Final = 0.7  # of what a rank's stalls cost, in one phase: it is that phase that stalls
_A_PART: Final = 0.1  # of it, to be mentioned
_AS_MUCH: Final = 0.8
_FAR_MORE: Final = 2.0
_STILL_LATE: Final = 0.4  # of a lateness,
_OF_A_STALL: Final = 0.25  # and of a stall


def with_stalls(
    own: OwnTime, excess: list[Floats], whole: Floats, lasting: list[Late]
) -> list[Late]:
    """Return who is late with who stalls, in phases in which they are not late anyway.

    `excess`, one a phase, and `whole` are [step, rank]. Far stalls raise the level around them: where a
    rank loses as much by stalls between steps without one, or far more, they are what is wrong with it.
    """
    scattered = _scattered(own, excess, whole)
    behind = whole * own.step_ns
    lasting = [
        one for one in lasting if not any(_told_by(stalls, one, behind) for stalls in scattered)
    ]
    taken = {(one.ranks, one.phase) for one in lasting}
    named = [one for one in _named(own, excess) if (one.ranks, one.phase) not in taken]
    late = {one.ranks for one in lasting}
    scattered = [
        one for one in scattered if one.ranks not in late and not _is_of_one_phase(one, named)
    ]
    ranks = {one.ranks for one in scattered}
    return [*lasting, *(one for one in named if one.ranks not in ranks), *scattered]


def _told_by(stalls: Late, lasting: Late, excess: Floats) -> bool:
    """Say whether a rank's stalls tell better what it loses than a lateness that lasts.

    `excess` is in nanoseconds.
    """
    if stalls.ranks != lasting.ranks:
        return False
    if _late_between(stalls, lasting, excess[:, lasting.ranks[0]]):
        return False
    now_and_then = len(stalls.touched) < _MOST * (stalls.last - stalls.first + 1)
    enough = _AS_MUCH if now_and_then else _FAR_MORE
    return _loss(stalls) > enough * _loss(lasting)


def _late_between(stalls: Late, lasting: Late, excess: Floats) -> bool:
    """Say whether a rank is late between its stalls, too: then it is late for a while."""
    between = np.setdiff1d(lasting.touched, stalls.touched)
    if not len(between):
        return False
    level, stall = (late.effect[:, late.ranks[0]] for late in (lasting, stalls))
    least = max(_STILL_LATE * level[between].mean(), _OF_A_STALL * stall[stalls.touched].mean())
    return bool(np.median(excess[between]) > least)


def _named(own: OwnTime, excess: list[Floats]) -> list[Late]:
    """Return ranks that stall in a phase."""
    rows = np.flatnonzero(own.settled)
    return [
        _late(own, values, stalls, rows, (phase,))
        for phase, values in zip(own.phases, excess, strict=True)
        for stalls in _sparse.find(values[rows])
    ]


def _scattered(own: OwnTime, excess: list[Floats], whole: Floats) -> list[Late]:
    """Return ranks that stall in all phases together."""
    rows = np.flatnonzero(own.settled)
    if len(own.phases) < 2:
        return []
    return [
        _late(own, whole, stalls, rows, _by_loss(own, excess, rows[stalls.rows], stalls.rank))
        for stalls in _sparse.find(whole[rows])
    ]


def _late(
    own: OwnTime,
    values: Floats,
    stalls: Stalls,
    settled: npt.NDArray[np.intp],
    names: tuple[str, ...],
) -> Late:
    """Put a rank's stalls into rows of all steps."""
    hit = settled[stalls.rows]
    effect = np.zeros(own.total.shape)
    effect[hit, stalls.rank] = values[hit, stalls.rank] * own.step_ns
    return Late(
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


def _by_loss(
    own: OwnTime, excess: list[Floats], hit: npt.NDArray[np.intp], rank: int
) -> tuple[str, ...]:
    """Return the phases in which a rank loses a good part in these steps, the largest first."""
    losses = [float(values[hit, rank].sum()) for values in excess]
    order = np.argsort(losses)[::-1]
    return tuple(own.phases[row] for row in order if losses[row] >= _A_PART * sum(losses))


def _is_of_one_phase(whole: Late, named: list[Late]) -> bool:
    """Say whether a rank stalls in one phase only, and most of what it loses by stalls is lost there."""
    mine = [one for one in named if one.ranks == whole.ranks]
    return len(mine) == 1 and _loss(mine[0]) >= _MOST * _loss(whole)


def _loss(late: Late) -> float:
    return float(late.effect.sum())
