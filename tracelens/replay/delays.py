"""Price late ranks: the same run again, without their delay.

Taking a delay away shortens the run by what its replay says (`event_graph.py`). Some runs cannot be
replayed: those without some of their ranks, and those whose waits have no recorded reason. There ranks
are taken to meet in every step, so a step takes as long as its slowest rank's compute time. That they
meet is seen in waits; where these look like transfer, in communication that takes the others as much
longer. Where neither is seen, late ranks delay the end of the run only, as far as they are the last to
end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.model.findings import TWO_SIDED
from tracelens.stats.robust import bootstrap_interval, join_intervals

if TYPE_CHECKING:
    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.arrays import Flags, Floats
    from tracelens.replay.edits.fixes import WorkFix
    from tracelens.replay.windows import Savings, WindowedReplay

__all__ = ["Price", "measure_side_by_side", "price_delay"]

# share of a delay: peers wait as long where ranks meet in every step [chosen]
MIN_SHARE_OF_DELAY_IN_WAITS: Final = 0.2
# share of a delay: transfers take so much longer; less may be their own variation [chosen]
MIN_SHARE_OF_DELAY_IN_TRANSFERS: Final = 0.5


@dataclass(frozen=True)
class Price:
    """Shares of the job: what fixing a delay saves, with its 95 % interval, and what others wait.

    `waiting_rank_count` ranks were seen waiting for the late ones. If none was,
    `communicating_rank_count` communicate for longer meanwhile, in which they may wait. `absorbed_share`
    of the delay costs nothing: 1 - lost / delay; of the delay, `absorbed_in_flight_share` is absorbed by
    reductions under way, the rest by others who are late in the same steps. `is_wait_inferred` says that
    ranks wait for them in collectives that no span shows, `is_replayed` that a replay says it.
    """

    saving_share: float
    saving_interval: tuple[float, float]
    cost_share: float
    waiting_rank_count: int
    absorbed_share: float = 0.0
    absorbed_in_flight_share: float = 0.0
    communicating_rank_count: int = 0
    is_wait_inferred: bool = False
    is_replayed: bool = False


def price_delay(
    compute_time: ComputeTime,
    fix: WorkFix,
    job_ns: float,
    replay: WindowedReplay | None = None,
    *,
    total: Floats | None = None,
    relative_error: float = 0.0,
) -> Price:
    """Price the delay that a fix takes away.

    Where the run cannot be replayed, it is what the slowest rank takes less. Then ranks must be seen to
    wait, or only the end of the run moves. Of a part of all ranks, others may be as late: they are taken
    to meet in every step, and the saving is an upper bound.

    Args:
        compute_time: Compute time of all workers.
        fix: One change of their work.
        job_ns: How long the job took.
        replay: Of the run; or None.
        total: What ranks take to meet in each step, ns, [step, rank]; None = their compute time.
        relative_error: Standard error of the delay, as a share of it.
    """
    ((_, effect_ns),) = fix.phases_and_effects_ns
    total_ns = np.nan_to_num(compute_time.total_compute_ns if total is None else total, nan=0.0)
    replayed = None if replay is None else replay.measure_savings(fix)
    if replayed is None or not replayed.identity.is_reliable:
        replayed = replay = None
    side_by_side_ns = measure_side_by_side(total_ns, effect_ns)
    lost_ns = side_by_side_ns if replayed is None else replayed.saved_ns_by_step
    limits_ns = _measure_limits(total_ns, fix, relative_error, replay)
    waited_ns = np.minimum(_measure_waits(compute_time.wait_ns, effect_ns), max(lost_ns.sum(), 0.0))
    waiting = int(np.count_nonzero(waited_ns > MIN_SHARE_OF_DELAY_IN_WAITS * lost_ns.sum()))
    communicating = 0
    if replayed is None and not compute_time.leaves_out_ranks and not waiting and lost_ns.any():
        length_ns = np.nan_to_num(compute_time.step_length_ns, nan=0.0)
        beside_ns = _measure_longer_than_late(length_ns - total_ns, effect_ns > 0)
        min_ns = MIN_SHARE_OF_DELAY_IN_TRANSFERS * lost_ns.sum()
        communicating = int(np.count_nonzero(beside_ns > min_ns))
        if not communicating:
            share = _measure_end_moved(length_ns, effect_ns) / lost_ns.sum()
            lost_ns, limits_ns = lost_ns * share, [limit_ns * share for limit_ns in limits_ns]
    low, high = _find_interval(lost_ns, effect_ns, limits_ns, job_ns, replayed)
    absorbed_share = _measure_absorbed_share(lost_ns, effect_ns)
    is_in_flight = replayed is not None and replayed.has_calls_in_flight
    by_others_share = _measure_absorbed_share(side_by_side_ns, effect_ns)
    in_flight_share = max(absorbed_share - by_others_share, 0.0) if is_in_flight else 0.0
    return Price(
        saving_share=max(float(lost_ns.sum()) / job_ns, 0.0),
        saving_interval=(0.0 if compute_time.leaves_out_ranks else low, max(high, 0.0)),
        cost_share=float(waited_ns.sum() / (total_ns.shape[1] * job_ns)),
        waiting_rank_count=waiting,
        absorbed_share=absorbed_share,
        absorbed_in_flight_share=in_flight_share,
        communicating_rank_count=communicating,
        is_wait_inferred=replayed is not None and replayed.has_inferred_calls and not waiting,
        is_replayed=replayed is not None,
    )


def _find_interval(
    lost_ns: Floats,
    effect_ns: Floats,
    limits_ns: list[float],
    job_ns: float,
    replayed: Savings | None,
) -> tuple[float, float]:
    """Return the 95 % interval of the saving, as shares of the job.

    It joins two uncertainties: of the loss of single steps, `lost_ns`, [step], and of the delay,
    `effect_ns`, [step, rank]. `limits_ns` holds the least and the greatest loss of the run. The upper
    end of the first adds a step that loses a whole delay. If no step lost anything, up to 3 of as many
    steps may still lose something (Hanley & Lippman-Hand 1983).
    """
    is_delayed = effect_ns.any(axis=1)
    low = high = 0.0
    if is_delayed.any():
        sample_ns, delay_ns = lost_ns[is_delayed], effect_ns[is_delayed].max(axis=1)
        low, _ = bootstrap_interval(sample_ns, job_ns)
        _, high = bootstrap_interval(np.append(sample_ns, delay_ns.mean()), job_ns)
    least_ns, most_ns = limits_ns
    limits = least_ns / job_ns, most_ns / job_ns
    interval = join_intervals(float(lost_ns.sum()) / job_ns, (low, high), limits)
    return interval if replayed is None else replayed.widen_interval(interval, job_ns)


def _measure_limits(
    total_ns: Floats, fix: WorkFix, relative_error: float, replay: WindowedReplay | None
) -> list[float]:
    """Return the least and the largest saving, ns, if the delay is at an end of its 95 % interval.

    `relative_error` is the standard error as a share of the delay. Without a replay, or if it cannot
    tell, times of ranks are compared side by side: `total_ns`, [step, rank].
    """
    limits_ns = []
    ((_, effect_ns),) = fix.phases_and_effects_ns
    for factor in dict.fromkeys((1 - TWO_SIDED * relative_error, 1 + TWO_SIDED * relative_error)):
        savings = None if replay is None else replay.measure_savings(fix, factor)
        side_by_side_ns = measure_side_by_side(total_ns, effect_ns * factor)
        limits_ns.append(float((savings.saved_ns_by_step if savings else side_by_side_ns).sum()))
    return [limits_ns[0], limits_ns[-1]]


def _measure_absorbed_share(lost_ns: Floats, effect_ns: Floats) -> float:
    """Return the share of delays, [step, rank], that was not lost (mitigation, Li et al. 2019)."""
    delay_ns = float(effect_ns.max(axis=1).sum())
    return min(max(1 - float(lost_ns.sum()) / delay_ns, 0.0), 1.0) if delay_ns > 0 else 0.0


def measure_side_by_side(total_ns: Floats, effect_ns: Floats) -> Floats:
    """Return by how much shorter steps are without an effect if ranks meet at their ends, ns, [step]."""
    return np.asarray(total_ns.max(axis=1) - (total_ns - effect_ns).max(axis=1))


def _measure_end_moved(length_ns: Floats, effect_ns: Floats) -> float:
    """Return by how much earlier the last rank ends without an effect, ns, if ranks never wait."""
    ends_ns = length_ns.sum(axis=0)  # [rank]
    return float(ends_ns.max() - (ends_ns - effect_ns.sum(axis=0)).max())


def _measure_longer_than_late(beside_ns: Floats, is_late: Flags) -> Floats:
    """Sum each rank's time outside of work beyond the late ranks' in the same steps, ns, [rank]."""
    rows = np.flatnonzero(is_late.any(axis=1))
    least_of_late_ns = np.where(is_late[rows], beside_ns[rows], np.inf).min(axis=1, keepdims=True)
    return np.asarray(np.where(is_late[rows], 0.0, beside_ns[rows] - least_of_late_ns).sum(axis=0))


def _measure_waits(wait_ns: Floats, effect_ns: Floats) -> Floats:
    """Sum each rank's waits, ns, [step, rank], in delayed steps and those that follow: [rank].

    Ranks that are delayed themselves, by `effect_ns`, [step, rank], do not wait for others: neither in
    that step nor in the next one.
    """
    is_late = effect_ns > 0
    is_or_was_late, is_step_concerned = is_late.copy(), np.asarray(effect_ns.any(axis=1))
    is_or_was_late[1:] |= is_late[:-1]
    is_step_concerned[1:] |= is_step_concerned[:-1]
    return np.asarray(np.where(is_or_was_late, 0.0, wait_ns)[is_step_concerned].sum(axis=0))
