"""How much transfer of each step nothing hides, on the rank with least of it: the one that came last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

if TYPE_CHECKING:
    from tracelens.analyses.phases import Phases

__all__ = ["exposed_transfer"]


def exposed_transfer(phases: Phases, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return nanoseconds for each of `steps`: no step can become shorter by more without transfer."""
    transfer = pl.col("ns").filter(pl.col("category") == "transfer").sum()
    least = (
        phases.times.group_by("step", "process")
        .agg(transfer)
        .group_by("step")
        .agg(pl.col("ns").min())
        .sort("step")
    )
    known = least["step"].to_numpy()
    if not len(known):
        return np.zeros(len(steps))
    place = np.minimum(np.searchsorted(known, steps), len(known) - 1)
    return np.where(known[place] == steps, least["ns"].to_numpy()[place], 0).astype(np.float64)
