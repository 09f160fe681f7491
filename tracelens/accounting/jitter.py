"""Jitter: what of ranks' waits is chance, as they wait now for one, now for another.

Of n ranks some are always a little later than others: where all wait as long for one as for another, a
step as for the next, nothing is wrong. Two things are no jitter: what they wait for one rank beyond what
they wait for its peers and what chance explains, and what they wait in few steps. Of a loss in few steps
chance can say nothing: whoever is late in them is late by so much as would explain itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.stats.robust import measure_deviation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.arrays import Flags, Floats, Ints

# steps: at most one of as many outweighs the others; more are not few [chosen]
STEPS_PER_OUTLIER: Final = 16
# share of the other steps' waits: a step that outweighs them has more [chosen]
MIN_SHARE_OF_OTHER_WAITS_OF_OUTLIER: Final = 1 / 16
# times the others' mean wait: a step that outweighs them has more [chosen]
MIN_RATIO_OF_WAIT_OF_OUTLIER: Final = 16
# standard deviations: a rank that others wait for longer counts as one that far off [chosen]
Z_SCORE_TO_CLIP_WAITS_CAUSED: Final = 2.0
ALONE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "alone_ns": pl.Float64(),  # for how long others waited for that rank alone
    "variance": pl.Float64(),  # of that, if any of the ranks may be the last one of each call, ns^2
}


@dataclass(frozen=True)
class Waits:
    """For how long others waited for each of `ranks` alone, by step; and in all, `waited_ns` by step.

    `alone` has `ALONE_COLUMNS`; `steps` are those of `waited_ns`, ascending.
    """

    ranks: tuple[int, ...]
    alone: pl.DataFrame
    steps: Ints
    waited_ns: Floats

    @property
    def by_rank(self) -> Floats:
        """For how long others waited for each rank alone, ns."""
        return self._sums(self.alone, "alone_ns")

    def jitter(self, named: set[int], part: Mapping[int, int]) -> float:
        """Return what share of waits would be if all ranks let others wait as long as the usual peer.

        Ranks that a fault names are not asked: for them others waited for a reason.

        Args:
            named: Those ranks.
            part: Which part each rank plays: those of one are peers.
        """
        mine = np.isin(self.alone["rank"].to_numpy(), list(named))
        rest, left = self.alone.filter(~mine), self._without(self.alone.filter(mine))
        few = self.steps[find_few_outlying_steps(left)]
        often = rest.filter(~np.isin(rest["step"].to_numpy(), few))
        spread = 1.0 - float(left[np.isin(self.steps, few)].sum()) / max(float(left.sum()), 1.0)
        asked = np.array([rank not in named for rank in self.ranks], np.bool_)
        alone = self._sums(often, "alone_ns")[asked]
        if len(alone) < 2 or not alone.any():
            return spread if len(alone) else 0.0
        by_chance = float(np.sqrt(often["variance"].to_numpy().sum()))
        parts = np.array([part[rank] for rank in self.ranks])[asked]
        in_turns = sum(_sum_usual_waits(alone[parts == one], by_chance) for one in np.unique(parts))
        return spread * float(in_turns / alone.sum())

    def _sums(self, alone: pl.DataFrame, column: str) -> Floats:
        place = np.searchsorted(np.array(self.ranks), alone["rank"].to_numpy())
        sums = np.bincount(place, alone[column].to_numpy(), minlength=len(self.ranks))
        return sums.astype(np.float64)

    def _without(self, alone: pl.DataFrame) -> Floats:
        """Return what was waited in each step but for those ranks; for each all others waited."""
        inside = alone.filter(np.isin(alone["step"].to_numpy(), self.steps))
        place = np.searchsorted(self.steps, inside["step"].to_numpy())
        caused = np.bincount(place, inside["alone_ns"].to_numpy(), minlength=len(self.steps))
        return np.maximum(self.waited_ns - (len(self.ranks) - 1) * caused, 0.0)


def find_few_outlying_steps(waited_ns: Floats) -> Flags:
    """Return in which few steps so much was waited that each outweighs many of the others.

    Such a step has many times the mean wait of the others, and as much as a share of all their waits.
    At most a small share of all steps are such steps: more are not few. Of a single step, all is in it.
    """
    few = np.zeros(len(waited_ns), np.bool_)
    most = max(len(waited_ns) // STEPS_PER_OUTLIER, 1)
    for step in np.argsort(-waited_ns, kind="stable")[:most].tolist():
        rest = np.delete(waited_ns, np.append(np.flatnonzero(few), step))
        if len(rest) and waited_ns[step] <= max(
            MIN_SHARE_OF_OTHER_WAITS_OF_OUTLIER * rest.sum(),
            MIN_RATIO_OF_WAIT_OF_OUTLIER * rest.mean(),
        ):
            break
        few[step] = True
    return few


def _sum_usual_waits(alone: Floats, by_chance_ns: float) -> float:
    """Return for how long peers let others wait, of each no more than is usual."""
    if len(alone) < 2:
        return float(alone.sum())
    alone = np.sort(alone)
    usual = alone[(len(alone) - 1) // 2]
    apart = measure_deviation(alone - np.median(alone)) if len(alone) > 2 else 0.0
    limit_ns = usual + Z_SCORE_TO_CLIP_WAITS_CAUSED * max(apart, by_chance_ns)
    return float(np.minimum(alone, limit_ns).sum())
