"""Jitter: what of ranks' waits is chance, as they wait now for one, now for another.

Of n ranks some are always a little later than others: where all wait as long for one as for another, a
step as for the next, nothing is wrong. Two things are no jitter: what they wait for one rank beyond what
they wait for its peers and what chance explains, and what they wait in few steps. Of a loss in few steps
chance says nothing: a rank that is late in them would explain its own delay.
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

    def jitter(self, accused: set[int], group: Mapping[int, int]) -> float:
        """Measure the share of waits if all ranks let others wait as long as the usual peer.

        Ranks that a fault names are not asked: for them others waited for a reason.

        Args:
            accused: Those ranks.
            group: Which part each rank plays: those of one are peers.
        """
        is_accused = np.isin(self.alone["rank"].to_numpy(), list(accused))
        waits_of_others, waited_ns = (
            self.alone.filter(~is_accused),
            self._leave_out_waits(self.alone.filter(is_accused)),
        )
        few_steps = self.steps[find_few_outlying_steps(waited_ns)]
        usual_waits = waits_of_others.filter(
            ~np.isin(waits_of_others["step"].to_numpy(), few_steps)
        )
        share_spread = 1.0 - float(waited_ns[np.isin(self.steps, few_steps)].sum()) / max(
            float(waited_ns.sum()), 1.0
        )
        is_asked = np.array([rank not in accused for rank in self.ranks], np.bool_)
        alone_ns = self._sums(usual_waits, "alone_ns")[is_asked]
        if len(alone_ns) < 2 or not alone_ns.any():
            return share_spread if len(alone_ns) else 0.0
        by_chance = float(np.sqrt(usual_waits["variance"].to_numpy().sum()))
        groups = np.array([group[rank] for rank in self.ranks])[is_asked]
        in_turns = sum(
            _sum_usual_waits(alone_ns[groups == number], by_chance) for number in np.unique(groups)
        )
        return share_spread * float(in_turns / alone_ns.sum())

    def _sums(self, alone: pl.DataFrame, column: str) -> Floats:
        index = np.searchsorted(np.array(self.ranks), alone["rank"].to_numpy())
        sums = np.bincount(index, alone[column].to_numpy(), minlength=len(self.ranks))
        return sums.astype(np.float64)

    def _leave_out_waits(self, alone: pl.DataFrame) -> Floats:
        """Measure the waits of each step but for those ranks, ns; for each all others waited."""
        in_steps = alone.filter(np.isin(alone["step"].to_numpy(), self.steps))
        index = np.searchsorted(self.steps, in_steps["step"].to_numpy())
        caused_ns = np.bincount(index, in_steps["alone_ns"].to_numpy(), minlength=len(self.steps))
        return np.maximum(self.waited_ns - (len(self.ranks) - 1) * caused_ns, 0.0)


def find_few_outlying_steps(waited_ns: Floats) -> Flags:
    """Return the few steps in which ranks waited more than in many others together.

    Such a step has many times the mean wait of the others, and as much as a share of all their waits.
    At most a small share of all steps are such steps: more are not few. Of a single step, all is in it.
    """
    is_few = np.zeros(len(waited_ns), np.bool_)
    max_count = max(len(waited_ns) // STEPS_PER_OUTLIER, 1)
    for step in np.argsort(-waited_ns, kind="stable")[:max_count].tolist():
        other_waits_ns = np.delete(waited_ns, np.append(np.flatnonzero(is_few), step))
        if len(other_waits_ns) and waited_ns[step] <= max(
            MIN_SHARE_OF_OTHER_WAITS_OF_OUTLIER * other_waits_ns.sum(),
            MIN_RATIO_OF_WAIT_OF_OUTLIER * other_waits_ns.mean(),
        ):
            break
        is_few[step] = True
    return is_few


def _sum_usual_waits(alone_ns: Floats, by_chance_ns: float) -> float:
    """Return for how long peers let others wait, of each no more than is usual."""
    if len(alone_ns) < 2:
        return float(alone_ns.sum())
    alone_ns = np.sort(alone_ns)
    typical_ns = alone_ns[(len(alone_ns) - 1) // 2]
    spread_ns = measure_deviation(alone_ns - np.median(alone_ns)) if len(alone_ns) > 2 else 0.0
    limit_ns = typical_ns + Z_SCORE_TO_CLIP_WAITS_CAUSED * max(spread_ns, by_chance_ns)
    return float(np.minimum(alone_ns, limit_ns).sum())
