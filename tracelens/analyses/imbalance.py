"""Load imbalance of ranks, lasting and from step to step.

Percent imbalance is max / mean - 1 of compute time (DeRose, Homer and Johnson 2007). Only a large one
that all ranks share (entropy of the slowest rank) is called load imbalance. Balanced work is computed so
that noise stays: more work makes forward and backprop longer alike (docs/analyses/load-imbalance.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.compute_time import (
    EXPLAINS_HARDLY,
    EXPLAINS_MOST,
    Explanation,
    explain_by_workload,
    measure_workload,
)
from tracelens.accounting.phases import job_ns
from tracelens.model import fmt
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding
from tracelens.replay.edits.fixes import WorkFix
from tracelens.replay.pricing import price_less_work
from tracelens.stats.robust import lower_medians, measure_deviation

if TYPE_CHECKING:
    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.arrays import Flags, Floats
    from tracelens.facts import Facts

MIN_STEPS_FOR_IMBALANCE_TEST: Final = 30  # steps: fewer are not judged [calibrate]
# of a step: work is even if the slowest rank is beyond the median one by less [calibrate]
MIN_RESIDUAL_OF_SLOWEST_RANK: Final = 0.10
# share of the highest entropy: with less, some ranks are the slowest too often [calibrate]
MIN_ENTROPY_OF_SLOWEST_RANK: Final = 0.9
# of a step: if ranks' usual deviation is smaller, single spikes make that residual [calibrate]
MIN_WIDTH_OF_RANKS: Final = 0.05
MIN_SAVING_OF_BALANCE: Final = 0.01  # of the job: an imbalance of less is not reported [policy]
# correlation: if it is lower, forward and backprop do not vary by work [calibrate]
MIN_CORRELATION_OF_WORK: Final = 0.25
# share of the mean rank's work: less counts as that much, so that no rank has none [policy]
MIN_RELATIVE_WORK: Final = 1e-3
# standard deviations: forward or backprop of a step is disturbed if they differ more [calibrate]
MIN_Z_SCORE_IF_DISTURBED: Final = 3
# standard deviations: a rank that is farther out counts as one that far off [calibrate]
Z_SCORE_TO_CLIP_DEVIATION: Final = 3

RANK_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "own_ns": pl.Float64(),  # mean per step
    "over_mean": pl.Float64(),  # own / mean of ranks - 1
    "last": pl.Float64(),  # share of steps in which its compute time was the longest
}
_WORK: Final = ("forward", "backprop")


@dataclass(frozen=True, eq=False)
class Imbalance(DisplayMixin):
    """Imbalance of ranks: `lasting` on totals, `per_step` on average."""

    ranks: pl.DataFrame
    lasting: float
    per_step: float
    findings: tuple[Finding, ...]


def run(facts: Facts) -> Imbalance:
    """Measure how uneven compute time is."""
    times = facts.compute_time
    total_ns = times.total_compute_ns
    # Steps that all ranks took, with any compute time at all.
    is_compared = np.asarray(
        times.is_comparable_row & ~np.isnan(total_ns).any(axis=1) & total_ns.any(axis=1)
    )
    total_ns = total_ns[is_compared]
    if total_ns.size == 0:
        return Imbalance(pl.DataFrame(schema=RANK_COLUMNS), lasting=0.0, per_step=0.0, findings=())
    mean_ns = total_ns.mean(axis=0)
    slowest_share = np.bincount(total_ns.argmax(axis=1), minlength=len(mean_ns)) / len(total_ns)
    over_mean = mean_ns / mean_ns.mean() - 1
    columns = {"rank": times.ranks, "own_ns": mean_ns, "over_mean": over_mean}
    table = pl.DataFrame(columns | {"last": slowest_share}, schema=RANK_COLUMNS)
    lasting = float(mean_ns.max() / mean_ns.mean() - 1)
    per_step = float((total_ns.max(axis=1) / total_ns.mean(axis=1) - 1).mean())
    is_varying = lasting < per_step / 2
    findings = _report_varying_work(facts, is_compared, slowest_share) if is_varying else []
    return Imbalance(ranks=table, lasting=lasting, per_step=per_step, findings=tuple(findings))


def _report_varying_work(facts: Facts, rows: Flags, slowest_share: Floats) -> list[Finding]:
    """Report work that is uneven in every step, but each time on another rank.

    `rows` flags the steps that are judged, [step]; in a share of these, `slowest_share`, [rank], each
    rank is the slowest.
    """
    times = facts.compute_time
    total_ns = times.total_compute_ns[rows]
    steps, ranks = total_ns.shape
    if ranks < 2 or steps < MIN_STEPS_FOR_IMBALANCE_TEST:
        return []
    step_ns, median_ns = times.typical_step_ns, np.median(total_ns, axis=1)
    usual_ns = lower_medians(total_ns) if ranks == 2 else median_ns
    residual = float((total_ns.max(axis=1) - usual_ns).mean()) / step_ns  # share of a step
    shares = slowest_share[slowest_share > 0]
    entropy = float(-(shares * np.log(shares)).sum()) + (len(shares) - 1) / (2 * steps)
    entropy = min(entropy / float(np.log(min(ranks, steps))), 1.0)  # share of the highest
    relative_width = measure_deviation(total_ns - median_ns[:, None]) / step_ns
    is_shared = entropy > MIN_ENTROPY_OF_SLOWEST_RANK and relative_width > MIN_WIDTH_OF_RANKS
    if residual <= MIN_RESIDUAL_OF_SLOWEST_RANK or not is_shared:
        return []
    less_ns = np.zeros(times.total_compute_ns.shape)
    less_ns[rows] = total_ns - balance_work(times, rows)
    fix = WorkFix(
        times.step_numbers, phases_and_effects_ns=((_find_varying_phases(times), less_ns),)
    )
    price = price_less_work(facts.replay, fix, job_ns(facts.trace), times.total_compute_ns)
    if price.saving_share < MIN_SAVING_OF_BALANCE:
        return []
    workload_reason = explain_by_workload(measure_workload(facts.phases, times), times)
    return [
        Finding.of(
            "load_imbalance",
            {"excess": f"{100 * residual:.0f} %", "why": _describe_reason(workload_reason)},
            saving=price.saving_share,
            interval=price.saving_interval,
            fix=price.fix,
            pattern="migrating",
            evidence={
                "excess": residual,
                "last_rank_entropy": entropy,
                "width": relative_width,
                "explained_by": workload_reason.amount_name if workload_reason else None,
                "explained": workload_reason.variance_share if workload_reason else None,
            },
        )
    ]


def _describe_reason(reason: Explanation | None) -> str:
    if reason is not None and reason.variance_share >= EXPLAINS_MOST:
        return (
            f"the number of {reason.amount_name} per rank varies, which explains "
            f"{fmt.percent(reason.variance_share)} of it"
        )
    if reason is not None and reason.variance_share <= EXPLAINS_HARDLY:
        return (
            f"the work per rank varies, though not with its {reason.amount_name} (a noisy machine?)"
        )
    return "the work per rank varies (sequence lengths, sample sizes, a noisy machine)"


def _find_varying_phases(times: ComputeTime) -> tuple[str, ...]:
    """Return the phases whose work is balanced: forward and backprop, or all where one is missing."""
    return _WORK if {*_WORK} <= {*times.phase_names} else times.phase_names


def balance_work(times: ComputeTime, rows: Flags) -> Floats:
    """Return compute time with balanced work, ns, [step, rank], in steps that all ranks took.

    A rank's work in a step is what forward and backprop take, as a multiple of the median rank's; the
    lesser of both where one is disturbed. They are divided by it, to a power below 1 that leaves them as
    noisy as noise is. Where they vary each by itself, everything is balanced. `rows` flags the steps.
    """
    total_ns = times.total_compute_ns[rows]
    even_ns = np.broadcast_to(np.median(total_ns, axis=1, keepdims=True), total_ns.shape)
    phases_ns = {
        phase: ns[rows] for phase, ns in zip(times.phase_names, times.compute_ns, strict=True)
    }
    if _find_varying_phases(times) == times.phase_names:
        return even_ns
    forward_deviation, backprop_deviation = (_clip_deviation(phases_ns[name]) for name in _WORK)
    covariance = float(np.mean(forward_deviation * backprop_deviation))
    variances = np.var(forward_deviation) * np.var(backprop_deviation)
    if covariance <= MIN_CORRELATION_OF_WORK * np.sqrt(variances):
        return even_ns
    work_ns = phases_ns["forward"] + phases_ns["backprop"]
    work_ratio = _measure_relative_work(phases_ns["forward"], phases_ns["backprop"])
    work_ratio = np.maximum(work_ratio / work_ratio.mean(axis=1, keepdims=True), MIN_RELATIVE_WORK)
    noise_variance = _measure_noise(phases_ns, forward_deviation, backprop_deviation)
    power = np.sqrt(np.clip(noise_variance / covariance, 0, 1))
    even_work_ns = work_ns * work_ratio ** (power - 1)
    step_work_ns = work_ns.sum(axis=1, keepdims=True)
    scale = step_work_ns / np.maximum(even_work_ns.sum(axis=1, keepdims=True), 1.0)
    return np.asarray(total_ns - work_ns + scale * even_work_ns)


def _measure_relative_work(forward_ns: Floats, backprop_ns: Floats) -> Floats:
    """Return the work of each rank as a multiple of the median rank's, [step, rank]."""
    forward, backprop = _divide_by_median(forward_ns), _divide_by_median(backprop_ns)
    difference = forward - backprop
    is_disturbed = np.abs(difference) > MIN_Z_SCORE_IF_DISTURBED * measure_deviation(difference)
    both = _divide_by_median(forward_ns + backprop_ns)
    return np.where(is_disturbed, np.minimum(forward, backprop), both)


def _measure_noise(phases_ns: dict[str, Floats], forward: Floats, backprop: Floats) -> float:
    """Return the variance of forward and backprop together by noise, relative to their length.

    The update shows what disturbs whole steps, the difference of both what disturbs one of them.
    `phases_ns` are by phase, `forward` and `backprop` relative deviations, all [step, rank].
    """
    lengths_ns = np.array([np.median(phases_ns[phase]) for phase in _WORK])
    weight = float((lengths_ns**2).sum() / lengths_ns.sum() ** 2)
    variance_of_one = measure_deviation(forward - backprop) ** 2 / 2 * weight
    if "update" not in phases_ns:
        return variance_of_one
    update = _clip_deviation(phases_ns["update"])
    covariance = float(np.mean((forward + backprop) / 2 * update))
    return variance_of_one + covariance


def _divide_by_median(spent_ns: Floats) -> Floats:
    """Return each rank's time, [step, rank], as a multiple of the step's median; 1 where that is 0."""
    median_ns = np.median(spent_ns, axis=1, keepdims=True)
    return np.divide(spent_ns, median_ns, out=np.ones_like(spent_ns), where=median_ns > 0)


def _clip_deviation(spent_ns: Floats) -> Floats:
    """Return each rank's relative deviation from the step's median, [step, rank], with its tails cut."""
    difference = _divide_by_median(spent_ns) - 1
    limit = Z_SCORE_TO_CLIP_DEVIATION * measure_deviation(difference)
    clipped = np.clip(difference, -limit, limit)
    return np.asarray(clipped - clipped.mean())
