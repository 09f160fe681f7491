"""Load imbalance of ranks, lasting and from step to step.

Percent imbalance is max / mean - 1 of compute time (DeRose, Homer and Johnson 2007). Per step it is
high and over the run low where the work varies, as with sequence lengths; both are high where it is
uneven for good. Noise alone makes max exceed the median too, so only a large imbalance shared out among
all ranks (entropy of last arrivals) is called load imbalance; one slow rank is a straggler instead.

What balanced work would save is computed on steps in which work is spread evenly while noise stays: more
work makes forward and backprop longer alike, but not the update; what disturbs a whole step makes all
three longer, and what disturbs one of them is no work either.
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
    explained_by_workload,
    measure_workload,
)
from tracelens.accounting.phases import job_ns
from tracelens.model import fmt
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding
from tracelens.replay.edits.fixes import WorkFix
from tracelens.replay.pricing import price_less_work
from tracelens.stats.robust import deviation, lower_medians

if TYPE_CHECKING:
    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.arrays import Flags, Floats
    from tracelens.facts import Facts


MIN_STEPS_FOR_IMBALANCE_TEST: Final = 30  # steps: fewer are not judged [calibrate]
# of a step: work is even if the slowest rank is beyond the median one by less [calibrate]
MIN_RESIDUAL_OF_SLOWEST_RANK: Final = 0.10
# share of the highest entropy: with less, some ranks are the slowest too often [calibrate]
MIN_ENTROPY_OF_SLOWEST_RANK: Final = 0.9
# of a step: single spikes make that residual if ranks' usual deviation is smaller [calibrate]
MIN_WIDTH_OF_RANKS: Final = 0.05
MIN_SAVING_OF_BALANCE: Final = 0.01  # of the job: an imbalance of less is not reported [policy]
# correlation: forward and backprop do not vary by work if it is lower [calibrate]
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


@dataclass(frozen=True, eq=False)
class Imbalance(DisplayMixin):
    """Imbalance of ranks: `lasting` on totals, `per_step` on average."""

    ranks: pl.DataFrame
    lasting: float
    per_step: float
    findings: tuple[Finding, ...]


def run(facts: Facts) -> Imbalance:
    """Measure how uneven compute time is."""
    own = facts.compute_time
    rows = _whole(own)
    total = own.total[rows]
    if total.size == 0:
        return Imbalance(pl.DataFrame(schema=RANK_COLUMNS), 0.0, 0.0, ())
    mean = total.mean(axis=0)
    last = np.bincount(total.argmax(axis=1), minlength=total.shape[1]) / len(total)
    table = pl.DataFrame(
        {"rank": own.ranks, "own_ns": mean, "over_mean": mean / mean.mean() - 1, "last": last},
        schema=RANK_COLUMNS,
    )
    lasting = float(mean.max() / mean.mean() - 1)
    per_step = float((total.max(axis=1) / total.mean(axis=1) - 1).mean())
    migrating = lasting < per_step / 2
    findings = _varying_work(facts, own, rows, last) if migrating else []
    return Imbalance(table, lasting, per_step, tuple(findings))


def _whole(own: ComputeTime) -> Flags:
    """Return which steps all ranks took, with any compute time at all."""
    total = own.total
    return np.asarray(own.settled & ~np.isnan(total).any(axis=1) & total.any(axis=1))


def _varying_work(facts: Facts, own: ComputeTime, rows: Flags, last: Floats) -> list[Finding]:
    """Look for work that is uneven in every step, but each time on another rank."""
    total = own.total[rows]
    steps, ranks = total.shape
    if ranks < 2 or steps < MIN_STEPS_FOR_IMBALANCE_TEST:
        return []
    usual = lower_medians(total) if ranks == 2 else np.median(total, axis=1)
    longest = float((total.max(axis=1) - usual).mean())
    imbalance_share = longest / max(own.step_ns, 1.0)
    shares = last[last > 0]
    entropy = float(-(shares * np.log(shares)).sum()) + (len(shares) - 1) / (2 * steps)
    entropy = min(entropy / float(np.log(min(ranks, steps))), 1.0)
    apart = total - np.median(total, axis=1, keepdims=True)
    width = deviation(apart) / max(own.step_ns, 1.0)
    is_shared = entropy > MIN_ENTROPY_OF_SLOWEST_RANK and width > MIN_WIDTH_OF_RANKS
    if imbalance_share <= MIN_RESIDUAL_OF_SLOWEST_RANK or not is_shared:
        return []
    less_ns = np.zeros(own.total.shape)
    less_ns[rows] = total - balanced(own, rows)
    fix = WorkFix(own.steps, ((_varying_phases(own), less_ns),))
    price = price_less_work(facts.replay, fix, job_ns(facts.trace), own.total)
    if price.saving < MIN_SAVING_OF_BALANCE:
        return []
    reason = explained_by_workload(measure_workload(facts.phases, own), own)
    return [
        Finding.of(
            "load_imbalance",
            {"excess": f"{100 * imbalance_share:.0f} %", "why": _why(reason)},
            saving=price.saving,
            interval=price.interval,
            fix=price.fix,
            pattern="migrating",
            evidence={
                "excess": imbalance_share,
                "last_rank_entropy": entropy,
                "width": width,
                "explained_by": reason.amount if reason else None,
                "explained": reason.share if reason else None,
            },
        )
    ]


def _why(reason: Explanation | None) -> str:
    if reason is not None and reason.share >= EXPLAINS_MOST:
        return (
            f"the number of {reason.amount} per rank varies, which explains "
            f"{fmt.percent(reason.share)} of it"
        )
    if reason is not None and reason.share <= EXPLAINS_HARDLY:
        return f"the work per rank varies, though not with its {reason.amount} (a noisy machine?)"
    return "the work per rank varies (sequence lengths, sample sizes, a noisy machine)"


def _varying_phases(own: ComputeTime) -> tuple[str, ...]:
    """Return the phases whose work is balanced: forward and backprop, or all where one is missing."""
    both = ("forward", "backprop")
    return both if {*both} <= {*own.phases} else own.phases


def balanced(own: ComputeTime, rows: Flags) -> Floats:
    """Return compute time with balanced work, [step, rank], in steps that all ranks took.

    A rank's work in a step is what forward and backprop take, as a multiple of the median rank's; the
    lesser of both where one is disturbed. They are divided by it, to a power below 1 that leaves them as
    noisy as noise is. Where they vary each by itself, everything is balanced.
    """
    total = own.total[rows]
    flat = np.broadcast_to(np.median(total, axis=1, keepdims=True), total.shape)
    phases = {name: values[rows] for name, values in zip(own.phases, own.own, strict=True)}
    if _varying_phases(own) == own.phases:
        return flat
    forward, backprop = (_clipped_deviation(phases[name]) for name in ("forward", "backprop"))
    common = float(np.mean(forward * backprop))
    if common <= MIN_CORRELATION_OF_WORK * np.sqrt(np.var(forward) * np.var(backprop)):
        return flat
    both = phases["forward"] + phases["backprop"]
    work = _relative_work(phases["forward"], phases["backprop"])
    work = np.maximum(work / work.mean(axis=1, keepdims=True), MIN_RELATIVE_WORK)
    kept = np.sqrt(np.clip(_noise(phases, forward, backprop) / common, 0, 1))
    even = both * work ** (kept - 1)
    as_much = both.sum(axis=1, keepdims=True) / np.maximum(even.sum(axis=1, keepdims=True), 1.0)
    return np.asarray(total - both + as_much * even)


def _relative_work(forward: Floats, backprop: Floats) -> Floats:
    """Return how much work each rank had, as a multiple of the median rank's."""
    first, second = _relative(forward), _relative(backprop)
    apart = first - second
    disturbed = np.abs(apart) > MIN_Z_SCORE_IF_DISTURBED * deviation(apart)
    return np.where(disturbed, np.minimum(first, second), _relative(forward + backprop))


def _noise(phases: dict[str, Floats], forward: Floats, backprop: Floats) -> float:
    """Return the variance by noise of forward and backprop together, relative to their length.

    What disturbs whole steps is seen in the update, too; what disturbs one of both, in their difference.
    """
    parts = np.array([np.median(phases[name]) for name in ("forward", "backprop")])
    single = deviation(forward - backprop) ** 2 / 2 * float((parts**2).sum() / parts.sum() ** 2)
    if "update" not in phases:
        return single
    return single + float(np.mean((forward + backprop) / 2 * _clipped_deviation(phases["update"])))


def _relative(values: Floats) -> Floats:
    """Return each rank's time as a multiple of the step's median; 1 where that is nothing."""
    middle = np.median(values, axis=1, keepdims=True)
    return np.divide(values, middle, out=np.ones_like(values), where=middle > 0)


def _clipped_deviation(values: Floats) -> Floats:
    """Return each rank's relative deviation from the step's median, without its tails."""
    apart = _relative(values) - 1
    limit = Z_SCORE_TO_CLIP_DEVIATION * deviation(apart)
    clipped = np.clip(apart, -limit, limit)
    return np.asarray(clipped - clipped.mean())
