"""Price late ranks: the same run again, without their delay.

Taking a delay away shortens the run by what its replay says (`model.py`). Some runs cannot be replayed:
those of which ranks were left out, and those whose waits have no recorded reason. There ranks are taken
to meet in every step, so a step takes as long as its slowest rank's compute time. That they meet is seen
in waits; where these look like transfer, in communication that takes the others as much longer. Where
neither is seen, late ranks delay the end of the run only, as far as they are the last to end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.model.findings import TWO_SIDED
from tracelens.stats.robust import bootstrap_interval, join_intervals

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.arrays import Flags, Floats
    from tracelens.replay.edits.fixes import WorkFix
    from tracelens.replay.windows import Savings, WindowedReplay

    _Savings: TypeAlias = Callable[[Floats], Savings | None]  # of an effect, [step, rank]


# share of a delay: peers wait as long where ranks meet in every step [chosen]
MIN_SHARE_OF_DELAY_IN_WAITS: Final = 0.2
# share of a delay: transfers take so much longer; less may be their own variation [chosen]
MIN_SHARE_OF_DELAY_IN_TRANSFERS: Final = 0.5


@dataclass(frozen=True)
class Price:
    """`saving` and `cost` as shares of the job; `waiting` ranks were seen waiting for the late ones.

    If none was, so many as `communicating` communicate for longer meanwhile, in which they may wait.
    `absorbed` is the share of the lateness that costs nothing: 1 - lost / late; of it, `in_flight` is
    absorbed by reductions under way, the rest by others who are late in the same steps. `inferred` says
    that ranks wait for them in collectives that no span shows, `is_replayed` that a replay says it.
    """

    saving: float
    interval: tuple[float, float]
    cost: float
    waiting: int
    absorbed: float = 0.0
    in_flight: float = 0.0
    communicating: int = 0
    inferred: bool = False
    is_replayed: bool = False


def price_delay(
    own: ComputeTime,
    fix: WorkFix,
    job_ns: float,
    replay: WindowedReplay | None = None,
    *,
    total: Floats | None = None,
    unsure: float = 0.0,
) -> Price:
    """Price the delay that a fix takes away.

    Where the run cannot be replayed, it is what the slowest rank takes less. Then ranks must be seen to
    wait, or only the end of the run moves. Of a part of all ranks, others may be as late: they are taken
    to meet in every step, and the saving is one at best.

    Args:
        own: Compute time of all workers.
        fix: One change of their work.
        job_ns: How long the job took.
        replay: Of the run; None if there is none.
        total: What ranks take to meet in each step, ns, [step, rank]; None = their compute time.
        unsure: Standard error of the delay, as a share of it.
    """
    ((names, effect),) = fix.changes
    total = np.nan_to_num(own.total if total is None else total, nan=0.0)
    ask = None if replay is None else partial(replay.measure_savings, names, steps=own.steps)
    replayed = None if ask is None else ask(effect)
    if replayed is None or not replayed.identity.reliable:
        replayed = ask = None
    side_by_side = measure_side_by_side(total, effect)
    lost = side_by_side if replayed is None else replayed.saved
    waited = np.minimum(_measure_waits(own.wait, effect), max(lost.sum(), 0.0))
    waiting = int(np.count_nonzero(waited > MIN_SHARE_OF_DELAY_IN_WAITS * lost.sum()))
    limits, communicating = _measure_limits(total, effect, unsure, ask), 0
    if replayed is None and not own.parted and not waiting and lost.any():
        whole = np.nan_to_num(own.length, nan=0.0)
        beside = _longer_than_late(whole - total, effect > 0)
        communicating = int(np.count_nonzero(beside > MIN_SHARE_OF_DELAY_IN_TRANSFERS * lost.sum()))
        if not communicating:
            counts = _at_the_end(whole, effect) / lost.sum()
            lost, limits = lost * counts, [limit * counts for limit in limits]
    low, high = _find_interval(lost, effect, limits, job_ns, replayed)
    absorbed = _absorbed(lost, effect)
    is_in_flight = replayed is not None and replayed.in_flight
    return Price(
        saving=max(float(lost.sum()) / job_ns, 0.0),
        interval=(0.0 if own.parted else low, max(high, 0.0)),
        cost=float(waited.sum() / (total.shape[1] * job_ns)),
        waiting=waiting,
        absorbed=absorbed,
        in_flight=max(absorbed - _absorbed(side_by_side, effect), 0.0) if is_in_flight else 0.0,
        communicating=communicating,
        inferred=replayed is not None and replayed.inferred and not waiting,
        is_replayed=replayed is not None,
    )


def _find_interval(
    lost: Floats, effect: Floats, limits: list[float], job_ns: float, replayed: Savings | None
) -> tuple[float, float]:
    """Return the interval of the saving: the doubt about single steps, and about the delay itself."""
    touched = effect.any(axis=1)
    drawn = _drawn(lost[touched], effect[touched].max(axis=1), job_ns)
    low, high = (limit / job_ns for limit in limits)
    interval = join_intervals(float(lost.sum()) / job_ns, drawn, (low, high))
    return interval if replayed is None else replayed.widen(interval, job_ns)


def _measure_limits(
    total: Floats, effect: Floats, unsure: float, replay: _Savings | None
) -> list[float]:
    """Return what is saved at least and at most, ns, if the delay is smaller or larger: 95 %."""
    limits = []
    for factor in dict.fromkeys((1 - TWO_SIDED * unsure, 1 + TWO_SIDED * unsure)):
        savings = None if replay is None else replay(effect * factor)
        saved_ns = savings.saved if savings else measure_side_by_side(total, effect * factor)
        limits.append(float(saved_ns.sum()))
    return [limits[0], limits[-1]]


def _absorbed(lost: Floats, effect: Floats) -> float:
    """Return what share of the lateness was not lost (Li et al. 2019 call it mitigation)."""
    late = float(effect.max(axis=1).sum())
    return min(max(1 - float(lost.sum()) / late, 0.0), 1.0) if late > 0 else 0.0


def _drawn(lost: Floats, effect: Floats, job_ns: float) -> tuple[float, float]:
    """Return the interval of the summed loss if other steps like these had been.

    For its upper end there is one more step, that loses a whole `effect`: where nothing was lost in any
    step, something may still be in 3 of as many (Hanley & Lippman-Hand 1983).
    """
    if not lost.size:
        return 0.0, 0.0
    further = np.append(lost, effect.mean())
    return bootstrap_interval(lost, job_ns)[0], bootstrap_interval(further, job_ns)[1]


def measure_side_by_side(total: Floats, effect: Floats) -> Floats:
    """Return by how much each step is shorter without `effect`, if ranks work side by side and meet."""
    return np.asarray(total.max(axis=1) - (total - effect).max(axis=1))


def _at_the_end(length: Floats, effect: Floats) -> float:
    """Return by how much the last rank ends earlier without `effect`, if no rank waits for another."""
    ends = length.sum(axis=0)
    return float(ends.max() - (ends - effect.sum(axis=0)).max())


def _longer_than_late(beside: Floats, late: Flags) -> Floats:
    """Return how much longer each rank did something than the late ranks of the same steps, [rank]."""
    rows = np.flatnonzero(late.any(axis=1))
    theirs = np.where(late[rows], beside[rows], np.inf).min(axis=1, keepdims=True)
    return np.asarray(np.where(late[rows], 0.0, beside[rows] - theirs).sum(axis=0))


def _measure_waits(wait: Floats, effect: Floats) -> Floats:
    """Return what each rank waits in delayed steps, and in those that follow, where updates are felt.

    Ranks that are delayed themselves do not wait for others: neither in that step nor in the next one.
    """
    is_late = effect > 0
    follows_delay, felt = is_late.copy(), np.asarray(effect.any(axis=1))
    follows_delay[1:] |= is_late[:-1]
    felt[1:] |= felt[:-1]
    return np.asarray(np.where(follows_delay, 0.0, wait)[felt].sum(axis=0))
