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
    """For how long others waited for each of `ranks` alone, by step; and the waits of all, [step].

    `waits_for_one` has a row per rank and step, in `ALONE_COLUMNS`; `step_numbers` are ascending.
    """

    ranks: tuple[int, ...]
    waits_for_one: pl.DataFrame
    step_numbers: Ints
    waited_ns: Floats

    @property
    def alone_ns_by_rank(self) -> Floats:
        """For how long others waited for each rank alone, [rank]."""
        return self._sum_by_rank(self.waits_for_one)

    def measure_jitter_share(self, accused: set[int], role_of_rank: Mapping[int, int]) -> float:
        """Return the share (0 to 1) of waits that is chance: what others wait for a usual rank.

        Waits for accused ranks, and waits in few outlying steps, do not count as chance.

        Args:
            accused: Ranks that a fault names: others waited for them for a reason.
            role_of_rank: Number of each rank's role; ranks with the same role are peers.
        """
        is_accused = np.isin(self.waits_for_one["rank"].to_numpy(), list(accused))
        innocent_waits = self.waits_for_one.filter(~is_accused)
        waited_ns = self._leave_out_waits(self.waits_for_one.filter(is_accused))  # [step]
        is_outlying = find_few_outlying_steps(waited_ns)
        waits_in_other_steps = innocent_waits.filter(
            ~np.isin(innocent_waits["step"].to_numpy(), self.step_numbers[is_outlying])
        )
        outlying_share = float(waited_ns[is_outlying].sum()) / max(float(waited_ns.sum()), 1.0)
        share_in_other_steps = 1.0 - outlying_share
        is_innocent = np.array([rank not in accused for rank in self.ranks], np.bool_)
        alone_ns = self._sum_by_rank(waits_in_other_steps)[is_innocent]
        if len(alone_ns) < 2 or not alone_ns.any():
            return share_in_other_steps if len(alone_ns) else 0.0
        chance_ns = float(np.sqrt(waits_in_other_steps["variance"].to_numpy().sum()))
        roles = np.array([role_of_rank[rank] for rank in self.ranks])[is_innocent]
        usual_ns = sum(
            _sum_usual_waits(alone_ns[roles == role], chance_ns) for role in np.unique(roles)
        )
        return share_in_other_steps * float(usual_ns / alone_ns.sum())

    def _sum_by_rank(self, waits: pl.DataFrame) -> Floats:
        column = np.searchsorted(np.array(self.ranks), waits["rank"].to_numpy())
        sums_ns = np.bincount(column, waits["alone_ns"].to_numpy(), minlength=len(self.ranks))
        return sums_ns.astype(np.float64)

    def _leave_out_waits(self, accused_waits: pl.DataFrame) -> Floats:
        """Return the waits, ns, [step], less those for accused ranks: all others wait for one.

        `accused_waits` has one row per step and late rank: how long others waited for it alone
        (`alone_ns`).
        """
        in_steps = accused_waits.filter(
            np.isin(accused_waits["step"].to_numpy(), self.step_numbers)
        )
        row = np.searchsorted(self.step_numbers, in_steps["step"].to_numpy())
        alone_ns = np.bincount(
            row, in_steps["alone_ns"].to_numpy(), minlength=len(self.step_numbers)
        )
        return np.maximum(self.waited_ns - (len(self.ranks) - 1) * alone_ns, 0.0)


def find_few_outlying_steps(waited_ns: Floats) -> Flags:
    """Find the few steps in which ranks waited more than in many others together, [step].

    `waited_ns` is the wait of all ranks, [step]. An outlying step has many times the mean wait of the
    others, and as much as a share of all their waits. Only a small share of all steps can be outlying:
    more are not few.
    """
    is_outlying = np.zeros(len(waited_ns), np.bool_)
    max_count = max(len(waited_ns) // STEPS_PER_OUTLIER, 1)
    for step_index in np.argsort(-waited_ns, kind="stable")[:max_count].tolist():
        other_waits_ns = np.delete(waited_ns, np.append(np.flatnonzero(is_outlying), step_index))
        if len(other_waits_ns) and waited_ns[step_index] <= max(
            MIN_SHARE_OF_OTHER_WAITS_OF_OUTLIER * other_waits_ns.sum(),
            MIN_RATIO_OF_WAIT_OF_OUTLIER * other_waits_ns.mean(),
        ):
            break
        is_outlying[step_index] = True
    return is_outlying


def _sum_usual_waits(alone_ns: Floats, chance_ns: float) -> float:
    """Sum how long others waited for each of some peers, ns, [peer]; of each at most what is usual.

    `chance_ns` is the standard deviation that chance alone gives such a wait.
    """
    if len(alone_ns) < 2:
        return float(alone_ns.sum())
    alone_ns = np.sort(alone_ns)
    typical_ns = alone_ns[(len(alone_ns) - 1) // 2]
    spread_ns = measure_deviation(alone_ns - np.median(alone_ns)) if len(alone_ns) > 2 else 0.0
    limit_ns = typical_ns + Z_SCORE_TO_CLIP_WAITS_CAUSED * max(spread_ns, chance_ns)
    return float(np.minimum(alone_ns, limit_ns).sum())
