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
    """Return a row for each call and rank of reductions that begin when their stream gets free.

    `call` and `column` are the row and the rank in the `Calls` with index `group`; `begin_ns` is when
    the call before had left the stream: `previous_group` and `previous_call` are its numbers.
    """
    group_cells = [pl.DataFrame(schema=dict.fromkeys(_CELL, pl.Int64))]
    for group, group_calls in enumerate(calls):
        column, call = np.nonzero(~group_calls.is_blocking.T)
        numbers = np.full(len(call), group), call, column, group_calls.worker[column]
        matrices = (group_calls.thread, group_calls.begin_ns, group_calls.end_ns)
        columns = *numbers, *(matrix[call, column] for matrix in matrices)
        group_cells.append(
            pl.DataFrame(dict(zip(_CELL, columns, strict=True)), schema=group_cells[0].schema)
        )
    stream = ("worker", "thread")
    previous = pl.col("group", "call", "end_ns").shift().over(*stream)
    cells = pl.concat(group_cells).sort(*stream, "begin_ns", maintain_order=True)
    cells = cells.with_columns(previous.name.prefix("previous_"))
    gap_ns = pl.col("begin_ns") - pl.col("previous_end_ns")
    overlap_count = (gap_ns < -MAX_QUEUE_GAP_NS).sum().over(*stream)
    reduction_groups = [group for group, one in enumerate(calls) if one.operation in REDUCTIONS]
    groups_with_departure = [group for group, one in enumerate(calls) if not one.is_rooted]
    queued = cells.filter(
        gap_ns.abs() <= MAX_QUEUE_GAP_NS,
        overlap_count <= MAX_SHARE_OF_OVERLAPS_OF_STREAM * pl.len().over(*stream),
        pl.col("group").is_in(reduction_groups),
        pl.col("previous_group").is_in(groups_with_departure),
    )
    columns_to_check = ("worker", "previous_end_ns", "begin_ns")
    has_resumed = timeline.has_resumed(*(queued[name].to_numpy() for name in columns_to_check))
    return queued.filter(pl.Series(~has_resumed))


def add_queue_edges(edges: EdgeList, cells: pl.DataFrame, calls: Sequence[Calls]) -> None:
    """Add edges to each queued call's departure from the completion of the call before in its stream."""
    groups = ("group", "previous_group")
    for group_cells in cells.sort(groups).partition_by(groups):
        group, previous_group = group_cells["group"][0], group_cells["previous_group"][0]
        completion_ns = calls[previous_group].completion_ns[group_cells["previous_call"].to_numpy()]
        lag_ns = np.maximum(group_cells["begin_ns"].to_numpy() - completion_ns, 0)
        # One edge for each pair of calls: that of the rank with the longest lag.
        with_lags = group_cells.with_columns(lag_ns=lag_ns).group_by("call", "previous_call")
        longest_lags = with_lags.agg(pl.col("lag_ns").max()).sort("call", "previous_call")
        call, previous_call, lag_ns = longest_lags.to_numpy().T
        source = calls[previous_group].departures[previous_call] + 1
        edges.add(source, calls[group].departures[call], lag_ns)


def estimate_ready_calls(
    calls: Sequence[Calls],
    queued_cells: pl.DataFrame,
    pieces: Sequence[WorkerPieces],
    worker_steps: Sequence[pl.DataFrame],
) -> list[Calls]:
    """Return the calls with `begin_ns` when each rank was ready, also of those that queued."""
    ready_calls = [*calls]
    worker_backprops = [] if queued_cells.is_empty() else [*map(_Backprop, pieces, worker_steps)]
    for (group,), group_cells in queued_cells.partition_by("group", as_dict=True).items():
        is_queued = np.zeros(calls[group].begin_ns.shape, np.bool_)
        is_queued[group_cells["call"].to_numpy(), group_cells["column"].to_numpy()] = True
        ready_calls[group] = _estimate_group(calls[group], is_queued, worker_backprops)
    return ready_calls


def _estimate_group(call: Calls, is_queued: Flags, backprops: Sequence[_Backprop]) -> Calls:
    """Return calls of one kind with `begin_ns` when each rank was ready; `is_queued` is [call, rank]."""
    rank_backprops = [backprops[worker] for worker in call.worker.tolist()]
    shares = np.stack(  # of backprop that is done when calls begin, [call, rank]
        [
            backprop.share_at(call.step, ns)
            for backprop, ns in zip(rank_backprops, call.begin_ns.T, strict=True)
        ],
        axis=1,
    )
    ready_shares = zip(rank_backprops, _estimate_shares(call, shares, is_queued).T, strict=True)
    estimate_ns = np.stack(
        [backprop.time_of(call.step, share) for backprop, share in ready_shares], axis=1
    )
    is_known = is_queued & np.isfinite(estimate_ns)
    ready_ns = np.where(is_known, np.nan_to_num(estimate_ns), call.begin_ns).astype(np.int64)
    # A call is not ready before the one before it: gradients come in the order of calls.
    ready_ns = np.minimum(np.maximum.accumulate(ready_ns, axis=0), call.begin_ns)
    return replace(call, begin_ns=np.where(is_known, ready_ns, call.begin_ns))


def _estimate_shares(call: Calls, shares: Floats, is_queued: Flags) -> Floats:
    """Return the share of backprop that is done when each rank is ready, [call, rank].

    `shares` is what is done when calls begin. Calls of one kind have the same position in steps of as
    many calls; it is known from those that did not queue, else interpolated by bytes.
    """
    position, calls_of_step, bytes_share = _find_positions_in_step(call)
    kinds, kind = np.unique(np.stack([calls_of_step, position]), axis=1, return_inverse=True)
    kind_calls_of_step, kind = kinds[0], kind.ravel()
    kind_shares = np.full((len(kind_calls_of_step), shares.shape[1]), np.nan)  # [kind, rank]
    max_shares = np.ones_like(kind_shares)
    for number in range(len(kind_shares)):
        rows = np.flatnonzero(kind == number)
        kind_shares[number] = _measure_shares(np.where(is_queued[rows], np.nan, shares[rows]))
        queued_shares = shares[rows][is_queued[rows]]
        if (known_shares := queued_shares[np.isfinite(queued_shares)]).size:
            max_shares[number] = np.quantile(known_shares, QUANTILE_OF_QUEUED_CALLS)
    bytes_done = np.zeros(len(kind_shares))  # share of the step's bytes, [kind]
    bytes_done[kind] = bytes_share
    for count in np.unique(kind_calls_of_step).tolist():
        rows = np.flatnonzero(kind_calls_of_step == count)
        for rank in range(kind_shares.shape[1]):
            kind_shares[rows, rank] = _interpolate(bytes_done[rows], kind_shares[rows, rank])
    return np.asarray(np.minimum(kind_shares, max_shares)[kind])


def _find_positions_in_step(call: Calls) -> tuple[Ints, Ints, Floats]:
    """Return each call's position in its step, the step's number of calls, and its bytes until then.

    The latter are a share of the step's bytes, with the call's own; all are [call].
    """
    is_first = np.append(True, np.diff(call.step) != 0)
    first_call, step_row = np.flatnonzero(is_first), np.cumsum(is_first) - 1
    nbytes = np.maximum(call.nbytes, 1).astype(np.float64)
    sum_bytes = np.cumsum(nbytes)
    sum_before_step = (sum_bytes - nbytes)[first_call][step_row]
    step_bytes = np.bincount(step_row, nbytes)[step_row]
    position = np.arange(call.count) - first_call[step_row]
    return position, np.bincount(step_row)[step_row], (sum_bytes - sum_before_step) / step_bytes


def _measure_shares(shares: Floats) -> Floats:
    """Return each rank's median share, of [call, rank]; that of all ranks where it has too few."""
    is_known = np.isfinite(shares)
    if np.count_nonzero(is_known) < MIN_UNQUEUED_CALLS:
        return np.full(shares.shape[1], np.nan)
    medians = np.full(shares.shape[1], np.median(shares[is_known]))
    for rank in np.flatnonzero(np.count_nonzero(is_known, axis=0) >= MIN_UNQUEUED_CALLS):
        medians[rank] = np.median(shares[is_known[:, rank], rank])
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
        """Return when some share (0 to 1) of each step's backprop was done, ns; nan without backprop."""
        before_step_ns, step_ns = self._measure_steps(step)
        target_ns = np.nan_to_num(before_step_ns + share * step_ns)
        # Half a nanosecond: sums of shares differ from the whole by less.
        bound_row = np.searchsorted(self._done_ns, target_ns - 0.5)
        bound_row = np.minimum(bound_row, len(self._bounds_ns) - 1)
        time_ns = self._bounds_ns[bound_row] - (self._done_ns[bound_row] - target_ns)
        return np.where(np.isfinite(share * step_ns), time_ns, np.nan)

    def _measure_steps(self, step: Ints) -> tuple[Floats, Floats]:
        """Return the backprop done before each step, and that of the step, ns; nan without any."""
        row = np.minimum(np.searchsorted(self._steps, step), len(self._steps) - 1)
        length_ns = self._done_at_end[row] - self._done_at_begin[row]
        is_known = (self._steps[row] == step) & (length_ns > 0)
        return self._done_at_begin[row], np.where(is_known, length_ns, np.nan)
