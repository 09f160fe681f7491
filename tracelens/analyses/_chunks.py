"""Takes a trace apart by processes, so that an analysis never needs rows for all events at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tracelens.trace import Trace

__all__ = ["chunks"]

ROWS: Final = 1 << 20  # events at a time, or those of one process: what fits is worked on quickly


def chunks(trace: Trace) -> list[Trace]:
    """Return parts of a trace that hold the events and arrivals of some workers each, by process."""
    events = trace.events.collect()
    if not events["process"].is_sorted():
        events = events.sort("process", maintain_order=True)
    workers = trace.workers["process"].sort().to_numpy()
    owner = events["process"].to_numpy()
    first, last = np.searchsorted(owner, workers), np.searchsorted(owner, workers, side="right")
    return [
        _part(trace, events.slice(first[a], last[b] - first[a]), workers[a], workers[b])
        for a, b in _runs(last - first)
    ]


def _runs(sizes: npt.NDArray[np.intp]) -> Iterator[tuple[int, int]]:
    """Yield the first and last of neighbours that are about `ROWS` together."""
    begin, total = 0, 0
    for place, size in enumerate(sizes):
        if total and total + size > ROWS:
            yield begin, place - 1
            begin, total = place, 0
        total += int(size)
    if len(sizes):
        yield begin, len(sizes) - 1


def _part(trace: Trace, events: pl.DataFrame, first: int, last: int) -> Trace:
    mine = pl.col("process").is_between(first, last)
    return trace.with_(
        events=events.lazy(),
        processes=trace.processes.filter(mine),
        steps=trace.steps.filter(mine),
        arrivals=trace.arrivals.filter(mine),
    )
