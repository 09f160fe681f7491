"""Congestion: transfers that are slow for all ranks in a part of the run, against the run's own best.

Each collective's time on the wire is compared with what calls of the same operation and payload usually
take. Two levels are fitted to the sum of a step; they must be far apart and keep apart step by step,
and computation must not slow down with them, or it is the machine and not the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.compute_time import WARM_UP
from tracelens.accounting.phases import job_ns
from tracelens.model import fmt
from tracelens.model.findings import Finding
from tracelens.replay.collectives import saved_by_faster_transfer
from tracelens.schema.vocabulary import USEFUL_KINDS
from tracelens.stats.changepoint import PERSISTENT, greatest_run
from tracelens.stats.robust import bootstrap_interval, deviation

if TYPE_CHECKING:
    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.model.trace import Trace

__all__ = ["findings"]

WORTH_REPORTING: Final = 0.01  # of the job
SLOWER: Final = 1.6  # times as long as outside
DEVIATIONS: Final = 6  # of the steps outside
FEWEST: Final = 16  # steps, inside and outside
APART: Final = 0.9  # of the steps of each level lie on its side of the middle
ALONE: Final = 1 / 3  # of what transfer slows by, computation may
_EXTREMES: Final = (0.1, 0.9)


@dataclass(frozen=True)
class _Slow:
    """Rows of steps with slow transfer, and how many times as long it takes in each."""

    inside: Flags
    ratio: Floats
    level: float


def findings(trace: Trace, calls: pl.DataFrame, phases: Phases, *, recorded: bool) -> list[Finding]:
    """Search the run for congestion; `recorded` says whether messages between ranks were."""
    job = job_ns(trace)
    relative = _relative(calls)
    steps = relative["step"].to_numpy().astype(np.int64)
    slow = _find(relative["ratio"].to_numpy())
    if slow is None or _compute_slowdown(phases, steps, slow):
        return []
    lost = saved_by_faster_transfer(
        calls, steps[slow.inside], 1 / np.maximum(slow.ratio[slow.inside], 1), phases
    )
    saving = float(lost.sum()) / job
    if saving < WORTH_REPORTING:
        return []
    return [_finding(steps, slow, saving, bootstrap_interval(lost, job), recorded=recorded)]


def _relative(calls: pl.DataFrame) -> pl.DataFrame:
    """Return of each step how many times as long as usual its transfer takes."""
    same = ("communicator", "op", "bytes")
    usual = calls.with_columns(usual=pl.col("wire_ns").median().over(same))
    sums = usual.filter(pl.col("step") >= 0).group_by("step").agg(pl.col("wire_ns", "usual").sum())
    return sums.select("step", ratio=pl.col("wire_ns") / pl.col("usual")).sort("step")


def _find(ratio: Floats) -> _Slow | None:
    """Fit two levels."""
    if len(ratio) < 2 * FEWEST + WARM_UP:
        return None
    settled = ratio[WARM_UP:]
    first, last = greatest_run(settled - np.mean(np.quantile(settled, _EXTREMES)))
    inside = np.zeros(len(ratio), np.bool_)
    inside[first + WARM_UP : last + WARM_UP + 1] = True
    outside = ~inside
    outside[:WARM_UP] = False
    if min(inside.sum(), outside.sum()) < FEWEST:
        return None
    upper, lower = float(np.median(ratio[inside])), float(np.median(ratio[outside]))
    spread = deviation(ratio[outside] - lower)
    middle = (upper + lower) / 2
    apart = min(np.mean(ratio[inside] > middle), np.mean(ratio[outside] < middle))
    if upper < SLOWER * lower or upper - lower < DEVIATIONS * spread or apart < APART:
        return None
    return _Slow(inside, ratio / lower, upper / lower)


def _compute_slowdown(phases: Phases, steps: Ints, slow: _Slow) -> bool:
    """Return whether computation slows down in the same steps."""
    own = (
        phases.times.filter(pl.col("category").cast(pl.String).is_in(USEFUL_KINDS))
        .group_by("step", "process")
        .agg(pl.col("ns").sum())
        .group_by("step")
        .agg(pl.col("ns").median())
    )
    known = dict(own.iter_rows())
    computed = np.array([known.get(step, np.nan) for step in steps.tolist()], np.float64)
    if np.isnan(computed[slow.inside]).all() or np.isnan(computed[~slow.inside]).all():
        return False
    growth = np.nanmedian(computed[slow.inside]) / np.nanmedian(computed[~slow.inside])
    return bool(growth - 1 > ALONE * (slow.level - 1))


def _finding(
    steps: Ints,
    slow: _Slow,
    saving: float,
    interval: tuple[float, float],
    *,
    recorded: bool,
) -> Finding:
    hit = steps[slow.inside]
    link = "no single link is the cause" if recorded else "collectives do not tell which link"
    lasting = len(hit) >= PERSISTENT * len(steps)
    first, last = int(hit[0]), int(hit[-1])
    return Finding.of(
        "congestion",
        {"steps": fmt.steps(first, last), "ratio": f"{slow.level:.1f}", "link": link},
        phase="reduction",
        pattern="persistent" if lasting else "transient",
        steps=(first, last),
        slowdown=slow.level,
        saving=saving,
        interval=interval,
        evidence={"times_as_long": slow.level, "steps_slow": len(hit), "link_identifiable": False},
    )
