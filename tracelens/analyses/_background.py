"""Time for background work: when a rank's weights are whole and its training thread has nothing to do.

Between a step's first and last weight update, weights are a mixture that no checkpoint wants. Of the
time outside of that, pieces count in which the thread waits, transfers or idles, if they are long enough
to be worth a switch; work in them delays nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.analyses._partition import CATEGORIES

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens.analyses._partition import Pieces
    from tracelens.analyses.phases import Phases
    from tracelens.trace import Trace

__all__ = ["BUDGET_COLUMNS", "budget"]

SHORTEST_NS: Final = 200_000  # twice a switch and a slice of work, both 0.05 ms
FREE: Final = [CATEGORIES.index(name) for name in ("wait", "ps_queue", "transfer", "idle")]
UPDATE: Final = CATEGORIES.index("update")
BUDGET_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "gap_ns": pl.Int64(),  # median time between a step's last update and the next one's first
    "usable_ns": pl.Int64(),  # of that, median per step
    "usable_p10_ns": pl.Int64(),  # nine of ten steps have more
    "share": pl.Float64(),  # usable, of all time
}


def budget(trace: Trace, phases: Phases) -> pl.DataFrame:
    """Return each rank's time for background work."""
    owners = phases.pieces.steps.select("process", "rank")
    ranks = set(trace.workers["process"].to_list())
    rows = []
    for pieces, offset in phases.pieces.cut:
        process, rank = owners.row(offset)
        found = _of(pieces) if process in ranks else None
        if found is None:
            continue
        gaps, usable = found
        length = int(pieces.bounds[-1] - pieces.bounds[0])
        low, middle = np.quantile(usable, [0.1, 0.5])
        share = float(usable.sum()) / max(length, 1)
        rows.append((rank, round(float(np.median(gaps))), round(middle), round(low), share))
    return pl.DataFrame(rows, schema=BUDGET_COLUMNS, orient="row").sort("rank")


def _of(pieces: Pieces) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """Return gaps between updates, and what is usable in each; None with fewer than two updates."""
    updates = np.flatnonzero(np.asarray(pieces.category) == UPDATE)
    if not len(updates):
        return None
    numbers = np.asarray(pieces.step)[updates]
    heads = np.flatnonzero(np.append(True, np.diff(numbers) != 0))
    begins = pieces.bounds[updates[heads]]
    ends = pieces.bounds[updates[np.append(heads[1:] - 1, len(updates) - 1)] + 1]
    if len(begins) < 2:
        return None
    length = np.diff(pieces.bounds)
    free = np.isin(np.asarray(pieces.category), FREE) & (length >= SHORTEST_NS)
    before = np.concatenate([[0], np.cumsum(np.where(free, length, 0))])
    at_end = before[np.searchsorted(pieces.bounds, ends[:-1])]
    at_begin = before[np.searchsorted(pieces.bounds, begins[1:])]
    return begins[1:] - ends[:-1], at_begin - at_end
