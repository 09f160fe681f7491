"""Estimate when reductions were ready that begin when their stream gets free.

A stream carries out one call after the other: a device profile shows a call from when the one before
has left the stream. Its data was ready earlier, at a time that is not recorded. A call was not queued if
a thread waited for the one before, and resumed in between: it was issued only then. A bucket of
gradients is ready when its share of backprop is done. That share is measured where calls of the same
place in their step did not queue. Between measured calls, and where none was measured, gradients come
in the order of the calls, and backprop takes as long for each byte of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.replay.calls import REDUCTIONS
from tracelens.replay.timeline import IS_BACKPROP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.accounting.pieces import WorkerPieces
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.replay.calls import Calls
    from tracelens.replay.edges import EdgeList
    from tracelens.replay.timeline import Timeline

__all__ = ["add_queue_edges", "estimate_ready_calls", "find_queued_cells"]

# ns: a call that begins so soon after the one before was queued; kernels are 1 to
# 10 us apart [chosen]
MAX_QUEUE_GAP_NS: Final = 20_000
# share of calls: a thread with more calls that overlap is no stream [chosen]
MAX_SHARE_OF_OVERLAPS_OF_STREAM: Final = 0.01
# calls: fewer do not tell when calls of their place are ready [chosen]
MIN_UNQUEUED_CALLS: Final = 4
# share of queued calls: all are ready when so many have begun [chosen]
QUANTILE_OF_QUEUED_CALLS: Final = 0.05
_CELL: Final = ("group", "call", "column", "worker", "thread", "begin_ns", "end_ns")


def find_queued_cells(calls: Sequence[Calls], timeline: Timeline) -> pl.DataFrame:
    """Return the cells of reductions that begin when the call before leaves their stream.

    A cell is a `call` on a rank, a row and a `column` of the `Calls` with index `group`; `begin_ns` is
    when it had the stream. `previous_group` and `previous_call` are those of the call before.
    """
    group_cells = [pl.DataFrame(schema=dict.fromkeys(_CELL, pl.Int64))]
    for group, of_group in enumerate(calls):
        column, call = np.nonzero(~of_group.is_blocking.T)
        ids = np.full(len(call), group), call, column, of_group.worker[column]
        matrices = (of_group.thread, of_group.begin_ns, of_group.end_ns)
        values = *ids, *(matrix[call, column] for matrix in matrices)
        group_cells.append(
            pl.DataFrame(dict(zip(_CELL, values, strict=True)), schema=group_cells[0].schema)
        )
    stream = ("worker", "thread")
    previous = pl.col("group", "call", "end_ns").shift().over(*stream)
    cells = pl.concat(group_cells).sort(*stream, "begin_ns", maintain_order=True)
    cells = cells.with_columns(previous.name.prefix("previous_"))
    gap_ns = pl.col("begin_ns") - pl.col("previous_end_ns")
    overlaps = (gap_ns < -MAX_QUEUE_GAP_NS).sum().over(*stream)
    reductions = [group for group, one in enumerate(calls) if one.operation in REDUCTIONS]
    with_departure = [group for group, one in enumerate(calls) if not one.is_rooted]
    queued = cells.filter(
        gap_ns.abs() <= MAX_QUEUE_GAP_NS,
        overlaps <= MAX_SHARE_OF_OVERLAPS_OF_STREAM * pl.len().over(*stream),
        pl.col("group").is_in(reductions),
        pl.col("previous_group").is_in(with_departure),
    )
    names = ("worker", "previous_end_ns", "begin_ns")
    has_resumed = timeline.has_resumed(*(queued[name].to_numpy() for name in names))
    return queued.filter(pl.Series(~has_resumed))


def add_queue_edges(edges: EdgeList, cells: pl.DataFrame, calls: Sequence[Calls]) -> None:
    """Let each queued call depart no earlier than the call before has left the stream."""
    for pairs in cells.sort("group", "previous_group").partition_by("group", "previous_group"):
        group, previous_group = pairs["group"][0], pairs["previous_group"][0]
        completion_ns = calls[previous_group].completion_ns[pairs["previous_call"].to_numpy()]
        lag_ns = np.maximum(pairs["begin_ns"].to_numpy() - completion_ns, 0)
        # One edge for each pair of calls: that of the rank with the longest lag.
        by_pair = pairs.with_columns(lag_ns=lag_ns).group_by("call", "previous_call")
        longest = by_pair.agg(pl.col("lag_ns").max()).sort("call", "previous_call")
        call, previous_call, lag_ns = longest.to_numpy().T
        source = calls[previous_group].departures[previous_call] + 1
        edges.add(source, calls[group].departures[call], lag_ns)


def estimate_ready_calls(
    calls: Sequence[Calls],
    queued_cells: pl.DataFrame,
    pieces: Sequence[WorkerPieces],
    windows: Sequence[pl.DataFrame],
) -> list[Calls]:
    """Return the calls with `begin_ns` when each rank was ready, also of those that queued."""
    ready_calls = [*calls]
    backprops = [] if queued_cells.is_empty() else [*map(_Backprop, pieces, windows)]
    for (group,), cells in queued_cells.partition_by("group", as_dict=True).items():
        is_queued = np.zeros(calls[group].begin_ns.shape, np.bool_)
        is_queued[cells["call"].to_numpy(), cells["column"].to_numpy()] = True
        ready_calls[group] = _estimate_group(calls[group], is_queued, backprops)
    return ready_calls


def _estimate_group(call: Calls, is_queued: Flags, backprops: Sequence[_Backprop]) -> Calls:
    """Return calls of one kind with `begin_ns` when each rank was ready."""
    ranks = [backprops[worker] for worker in call.worker.tolist()]
    columns = zip(ranks, call.begin_ns.T, strict=True)
    shares = np.stack([rank.share_at(call.step, begin_ns) for rank, begin_ns in columns], axis=1)
    columns = zip(ranks, _estimate_shares(call, shares, is_queued).T, strict=True)
    estimate_ns = np.stack([rank.time_of(call.step, share) for rank, share in columns], axis=1)
    is_known = is_queued & np.isfinite(estimate_ns)
    ready_ns = np.where(is_known, np.nan_to_num(estimate_ns), call.begin_ns).astype(np.int64)
    # A call is not ready before the one before it: gradients come in the order of calls.
    ready_ns = np.minimum(np.maximum.accumulate(ready_ns, axis=0), call.begin_ns)
    return replace(call, begin_ns=np.where(is_known, ready_ns, call.begin_ns))


def _estimate_shares(call: Calls, shares: Floats, is_queued: Flags) -> Floats:
    """Return the share of backprop that is done when each rank is ready, [call, rank]."""
    position, count, bytes_share = _find_positions_in_step(call)
    kinds, kind = np.unique(np.stack([count, position]), axis=1, return_inverse=True)
    kind = kind.ravel()
    estimates = np.full((kinds.shape[1], shares.shape[1]), np.nan)
    latest = np.ones_like(estimates)
    for number in range(kinds.shape[1]):
        rows = np.flatnonzero(kind == number)
        estimates[number] = _measure_shares(np.where(is_queued[rows], np.nan, shares[rows]))
        queued = shares[rows][is_queued[rows]]
        if (known := queued[np.isfinite(queued)]).size:
            latest[number] = np.quantile(known, QUANTILE_OF_QUEUED_CALLS)
    bytes_done = np.zeros(kinds.shape[1])
    bytes_done[kind] = bytes_share
    for number in np.unique(kinds[0]).tolist():
        rows = np.flatnonzero(kinds[0] == number)
        for column in range(estimates.shape[1]):
            estimates[rows, column] = _interpolate(bytes_done[rows], estimates[rows, column])
    return np.asarray(np.minimum(estimates, latest)[kind])


def _find_positions_in_step(call: Calls) -> tuple[Ints, Ints, Floats]:
    """Return each call's position in its step, the step's calls, and the share of bytes until it."""
    is_first = np.append(True, np.diff(call.step) != 0)
    heads, window = np.flatnonzero(is_first), np.cumsum(is_first) - 1
    nbytes = np.maximum(call.nbytes, 1).astype(np.float64)
    done = np.cumsum(nbytes)
    done_before = (done - nbytes)[heads][window]
    total = np.bincount(window, nbytes)[window]
    position = np.arange(call.count) - heads[window]
    return position, np.bincount(window)[window], (done - done_before) / total


def _measure_shares(shares: Floats) -> Floats:
    """Return each rank's median share, of [call, rank]; that of all ranks where it has too few."""
    is_known = np.isfinite(shares)
    if np.count_nonzero(is_known) < MIN_UNQUEUED_CALLS:
        return np.full(shares.shape[1], np.nan)
    medians = np.full(shares.shape[1], np.median(shares[is_known]))
    for column in np.flatnonzero(np.count_nonzero(is_known, axis=0) >= MIN_UNQUEUED_CALLS):
        medians[column] = np.median(shares[is_known[:, column], column])
    return medians


def _interpolate(bytes_done: Floats, shares: Floats) -> Floats:
    """Fill in unknown shares (nan) by the bytes between those that are known."""
    known = np.flatnonzero(np.isfinite(shares))
    anchors = np.concatenate([[0.0], bytes_done[known], [1.0]])
    levels = np.maximum.accumulate(np.concatenate([[0.0], shares[known], [1.0]]))
    return np.where(np.isfinite(shares), shares, np.interp(bytes_done, anchors, levels))


class _Backprop:
    """The progress of a worker's backprop in its steps, by time."""

    def __init__(self, pieces: WorkerPieces, windows: pl.DataFrame) -> None:
        self._bounds_ns, self._steps = pieces.bounds, windows["step"].to_numpy()
        edges_ns = (windows[name].to_numpy() for name in ("start_ns", "end_ns"))
        self._done_ns, self._done_at_begin, self._done_at_end = (
            pieces.spent_before(IS_BACKPROP, times_ns) for times_ns in (pieces.bounds, *edges_ns)
        )

    def share_at(self, step: Ints, times_ns: Ints) -> Floats:
        """Return the share of its step's backprop that is done at each time; nan without backprop."""
        before_ns, length_ns = self._measure_steps(step)
        done_ns = np.interp(times_ns, self._bounds_ns, self._done_ns)
        return np.clip((done_ns - before_ns) / length_ns, 0.0, 1.0)

    def time_of(self, step: Ints, share: Floats) -> Floats:
        """Return when a share of the step's backprop was done, ns; nan without backprop."""
        before_ns, length_ns = self._measure_steps(step)
        wanted_ns = np.nan_to_num(before_ns + share * length_ns)
        # Half a nanosecond: sums of shares differ from the whole by less.
        bound = np.searchsorted(self._done_ns, wanted_ns - 0.5)
        bound = np.minimum(bound, len(self._bounds_ns) - 1)
        time_ns = self._bounds_ns[bound] - (self._done_ns[bound] - wanted_ns)
        return np.where(np.isfinite(share * length_ns), time_ns, np.nan)

    def _measure_steps(self, step: Ints) -> tuple[Floats, Floats]:
        """Return the backprop done before each step, and that of the step, ns; nan without any."""
        row = np.minimum(np.searchsorted(self._steps, step), len(self._steps) - 1)
        length_ns = self._done_at_end[row] - self._done_at_begin[row]
        is_known = (self._steps[row] == step) & (length_ns > 0)
        return self._done_at_begin[row], np.where(is_known, length_ns, np.nan)
