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
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from tracelens.analyses._partition import Pieces
    from tracelens.analyses.phases import Phases
    from tracelens.trace import Trace

    Ints = npt.NDArray[np.int64]
    _Found = tuple[int, int, Ints, Ints]  # rank, all its time, gaps between updates, what is usable

__all__ = ["BUDGET_COLUMNS", "budget"]

SHORTEST_NS: Final = 200_000  # twice a switch and a slice of work, both 0.05 ms
IS_FREE: Final = np.isin(CATEGORIES, ("wait", "ps_queue", "transfer", "idle"))
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
    owners = phases.pieces.steps.select("process", "rank").to_numpy()
    workers = set(trace.workers["process"].to_list())
    found = [
        (int(owners[offset, 1]), int(pieces.bounds[-1] - pieces.bounds[0]), *between)
        for pieces, offset in phases.pieces.cut
        if owners[offset, 0] in workers and (between := _of(pieces)) is not None
    ]
    rows = [row for same in _alike(found) for row in _rows(same)]
    return pl.DataFrame(rows, schema=BUDGET_COLUMNS, orient="row").sort("rank")


def _alike(found: list[_Found]) -> Iterable[list[_Found]]:
    """Return the ranks that have equally many gaps."""
    groups: dict[int, list[_Found]] = {}
    for one in found:
        groups.setdefault(len(one[2]), []).append(one)
    return groups.values()


def _rows(alike: list[_Found]) -> Iterator[tuple[int, int, int, int, float]]:
    """Yield the row of each rank."""
    gap = np.median([gaps for *_, gaps, _ in alike], axis=1)
    low, middle = np.quantile([usable for *_, usable in alike], [0.1, 0.5], axis=1)
    for row, (rank, length, _, usable) in enumerate(alike):
        share = float(usable.sum()) / max(length, 1)
        yield rank, round(float(gap[row])), round(middle[row]), round(low[row]), share


def _of(pieces: Pieces) -> tuple[Ints, Ints] | None:
    """Return gaps between updates, and what is usable in each; None with fewer than two updates."""
    updates = np.flatnonzero(pieces.category == UPDATE)
    if not len(updates):
        return None
    numbers = pieces.step[updates]
    last = np.append(np.flatnonzero(numbers[1:] != numbers[:-1]), len(updates) - 1)
    begins = pieces.bounds[updates[np.append(0, last[:-1] + 1)]]
    ends = pieces.bounds[updates[last] + 1]
    if len(begins) < 2:
        return None
    length = np.diff(pieces.bounds)
    free = IS_FREE[pieces.category] & (length >= SHORTEST_NS)
    before = np.concatenate([[0], np.cumsum(np.where(free, length, 0))])
    at_end, at_begin = before[np.searchsorted(pieces.bounds, (ends[:-1], begins[1:]))]
    return begins[1:] - ends[:-1], at_begin - at_end
