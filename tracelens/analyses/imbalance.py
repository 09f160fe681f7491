"""Load imbalance: of ranks, lasting and from step to step, and of parameter-server shards.

Percent imbalance is max / mean - 1 of own time (DeRose, Homer and Johnson 2007). Per step it is high
and over the run low where the work varies, as with sequence lengths; both are high where it is uneven
for good. Noise alone makes max exceed the median too, so only a large excess shared out among all
ranks (entropy of who comes last) is called load imbalance; one slow rank is a straggler instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens import words
from tracelens.analyses import shards
from tracelens.analyses._evened import evened
from tracelens.analyses._own_time import measure as own_time
from tracelens.analyses._robust import deviation
from tracelens.analyses._work import HARDLY, MOST_OF_IT, Explanation, explaining, work
from tracelens.analyses.result import Finding

if TYPE_CHECKING:
    from tracelens.analyses._own_time import Floats, OwnTime
    from tracelens.analyses.phases import Phases
    from tracelens.analyses.shards import Shards
    from tracelens.trace import Trace

Flags = npt.NDArray[np.bool_]

__all__ = ["RANK_COLUMNS", "Imbalance", "run"]

FEWEST_RANKS: Final = 4  # "who comes last" says nothing among fewer
FEWEST_STEPS: Final = 30
EXCESS: Final = 0.10  # of a step
WIDTH: Final = (
    0.06  # of a step: how far any two ranks differ; less, and single spikes make the excess
)
WORTH: Final = 0.01  # of the job
ENTROPY: Final = 0.9  # 1 = each rank is last equally often
RANK_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "own_ns": pl.Float64(),  # mean per step
    "over_mean": pl.Float64(),  # own / mean of ranks - 1
    "last": pl.Float64(),  # share of steps in which its own time was the longest
}


@dataclass(frozen=True)
class Imbalance:
    """Imbalance of ranks (`lasting` on totals, `per_step` on average) and of shards."""

    ranks: pl.DataFrame
    lasting: float
    per_step: float
    shards: Shards
    findings: tuple[Finding, ...]

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """What a report shows."""
        return {"shards": self.shards.loads, "placements": self.shards.placements}


def run(trace: Trace, phases: Phases) -> Imbalance:
    """Measure both."""
    servers = shards.measure(trace, phases)
    own = own_time(trace, phases)
    rows = _whole(own)
    total = own.total[rows]
    if total.size == 0:
        return Imbalance(pl.DataFrame(schema=RANK_COLUMNS), 0.0, 0.0, servers, servers.findings)
    mean = total.mean(axis=0)
    last = np.bincount(total.argmax(axis=1), minlength=total.shape[1]) / len(total)
    table = pl.DataFrame(
        {"rank": own.ranks, "own_ns": mean, "over_mean": mean / mean.mean() - 1, "last": last},
        schema=RANK_COLUMNS,
    )
    lasting = float(mean.max() / mean.mean() - 1)
    per_step = float((total.max(axis=1) / total.mean(axis=1) - 1).mean())
    wanders = lasting < per_step / 2
    findings = (*servers.findings, *(_varying_work(trace, own, rows, last) if wanders else ()))
    return Imbalance(table, lasting, per_step, servers, findings)


def _whole(own: OwnTime) -> Flags:
    """Say which steps all ranks took, and with any own work at all."""
    total = own.total
    return np.asarray(own.settled & ~np.isnan(total).any(axis=1) & total.any(axis=1))


def _varying_work(trace: Trace, own: OwnTime, rows: Flags, last: Floats) -> list[Finding]:
    """Look for work that is uneven in every step, but each time on another rank."""
    total = own.total[rows]
    steps, ranks = total.shape
    if ranks < FEWEST_RANKS or steps < FEWEST_STEPS:
        return []
    excess = float((total.max(axis=1) - np.median(total, axis=1)).mean()) / max(own.step_ns, 1.0)
    shares = last[last > 0]
    entropy = float(-(shares * np.log(shares)).sum()) + (len(shares) - 1) / (2 * steps)
    entropy = min(entropy / float(np.log(min(ranks, steps))), 1.0)
    apart = total - np.median(total, axis=1, keepdims=True)
    width = deviation(apart) / max(own.step_ns, 1.0)
    if excess <= EXCESS or entropy <= ENTROPY or width <= WIDTH:
        return []
    lost = total.max(axis=1) - evened(own, rows).max(axis=1)
    saving = float(lost.mean() / np.nanmean(own.length[rows]))
    if saving < WORTH:
        return []
    reason = explaining(work(trace, own), own)
    return [
        Finding(
            kind="load_imbalance",
            category="opportunity",
            saving=saving,
            pattern="rotating",
            sentence=(
                f"In every step some rank works {100 * excess:.0f} % of a step longer than most, each "
                f"time another one: {_why(reason)}; evening it out would make the job up to "
                f"{words.percent(saving)} shorter."
            ),
            evidence={
                "excess": excess,
                "last_rank_entropy": entropy,
                "width": width,
                "explained_by": reason.amount if reason else None,
                "explained": reason.share if reason else None,
            },
        )
    ]


def _why(reason: Explanation | None) -> str:
    if reason is not None and reason.share >= MOST_OF_IT:
        return (
            f"the number of {reason.amount} per rank varies, which explains "
            f"{words.percent(reason.share)} of it"
        )
    if reason is not None and reason.share <= HARDLY:
        return f"the work per rank varies, though not with its {reason.amount} (a noisy machine?)"
    return "the work per rank varies (sequence lengths, sample sizes, a noisy machine)"
