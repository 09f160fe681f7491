"""Bounds what hiding transfer behind backprop would save."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracelens.model.calls import NEVER, distinct
from tracelens.model.columns import FOREVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Indices, Ints
    from tracelens.model.calls import CallGrid
    from tracelens.model.trace import Trace


def hideable_transfer(trace: Trace, phases: Phases) -> int:
    """Return by how many nanoseconds hiding transfer would shorten the job, at best.

    In a step no rank can hide more than its backprop has room for, nor what must follow backprop: the
    last collective, or the pulls of new weights. A step is shorter only by what the rank gains that
    gains least.
    """
    room = np.maximum(phases.of("backprop") - phases.hidden_ns, 0)
    early = phases.of("transfer") * (1 - _pulled(trace)) - _last_transfers(trace, phases)
    gain = np.minimum(np.maximum(early, 0), room)
    least = np.full(len(phases.steps), np.inf)
    np.minimum.at(least, phases.step_places[phases.there], gain[phases.there])
    return int(least[np.isfinite(least)].sum())


def _last_transfers(trace: Trace, phases: Phases) -> Ints:
    """Return the transfer of the last collective of each step window; 0 where there is none."""
    transfer = np.zeros(len(phases.there), np.int64)
    latest = np.full(len(transfer) + 1, NEVER)  # the last one is of no window
    for calls, window in _by_window(trace, phases):
        np.maximum.at(latest, window.T.ravel(), calls.start_ns.T.ravel())
    for calls, window in _by_window(trace, phases):
        cells = np.nonzero((calls.start_ns == latest[window]) & (window >= 0))
        transfer[window[cells]] = (calls.end_ns - calls.start_ns - calls.wait_ns())[cells]
    return transfer


def _by_window(trace: Trace, phases: Phases) -> Iterator[tuple[CallGrid, Indices]]:
    """Yield calls, some at a time, and the step window of each cell; -1 where it is not over."""
    for grid in trace.calls:
        for _, some in grid.taken(np.flatnonzero(grid.last_ns != NEVER)).blocks():
            window = phases.windows_of(some.processes, distinct(some.step))
            yield some, np.where(some.there & (some.end_ns != FOREVER), window, -1)


def _pulled(trace: Trace) -> float:
    """Return the share of pulls in what workers exchange with parameter servers; 0 without any."""
    op = pl.col("op").cast(pl.String)
    moved = trace.requests.filter((pl.col("kind") == "ps") & op.is_in(["push", "pull"]))
    sums = moved.select(
        pulled=pl.col("bytes").filter(op == "pull").sum(), all=pl.col("bytes").sum()
    )
    pulled, everything = sums.row(0)
    return float(pulled / everything) if everything else 0.0
