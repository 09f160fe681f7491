"""Plays each step's collectives again with other times on the wire: how much earlier is the end?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracelens.analyses._exposed import exposed_transfer
from tracelens.analyses._fusion import Calls, through

if TYPE_CHECKING:
    import polars as pl

    from tracelens.analyses.phases import Phases

__all__ = ["saved"]

Floats = npt.NDArray[np.float64]


def saved(
    calls: pl.DataFrame, steps: npt.NDArray[np.int64], takes: Floats, phases: Phases
) -> Floats:
    """Return by how many nanoseconds each of `steps` is shorter, as far as nothing hides the transfer.

    Args:
        calls: Collectives (`_calls.CALL_COLUMNS`).
        steps: Which are changed, ascending.
        takes: What share of its time on the wire each call of the step then takes.
        phases: What each step has of transfer that nothing hides.
    """
    total = np.zeros(len(steps))
    for part in calls.partition_by("communicator", maintain_order=True):
        for same in Calls.of(part):
            here = np.isin(same.steps, steps)
            rows = np.searchsorted(steps, same.steps[here])
            gain = through(same, same.wire) - through(
                same, same.wire * _of(same, here, takes, rows)
            )
            total[rows] += np.maximum(gain[here], 0)
    return np.minimum(total, exposed_transfer(phases, steps))


def _of(
    calls: Calls, here: npt.NDArray[np.bool_], takes: Floats, rows: npt.NDArray[np.intp]
) -> Floats:
    share = np.ones((len(calls.steps), 1))
    share[here, 0] = takes[rows]
    return share
