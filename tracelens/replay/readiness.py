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

__all__ = ["add_queue_edges", "estimate_ready_calls", "find_queued_entries"]

# ns: a call that begins so soon after the one before was queued; kernels are 1 to
# 10 us apart [chosen]
MAX_QUEUE_GAP_NS: Final = 20_000
# share of calls: a thread with more calls that overlap is no stream [chosen]
MAX_SHARE_OF_OVERLAPS_OF_STREAM: Final = 0.01
# calls: fewer do not tell when calls of their place are ready [chosen]
MIN_UNQUEUED_CALLS: Final = 4
# share of queued calls: all are ready when so many have begun [chosen]
QUANTILE_OF_QUEUED_CALLS: Final = 0.05
_ENTRY_COLUMNS: Final = ("group", "call", "column", "worker", "thread", "begin_ns", "end_ns")


def find_queued_entries(calls: Sequence[Calls], timeline: Timeline) -> pl.DataFrame:
    """Return a row for each call and rank of reductions that begin when their stream gets free.

    `call` and `column` are the row and the rank in the `Calls` with index `group`; `begin_ns` is when
    the call before had left the stream: `previous_group` and `previous_call` are its numbers.
    """
    group_entries = [pl.DataFrame(schema=dict.fromkeys(_ENTRY_COLUMNS, pl.Int64))]
    for group, group_calls in enumerate(calls):
        column, call = np.nonzero(~group_calls.is_blocking.T)
        numbers = np.full(len(call), group), call, column, group_calls.workers[column]
        matrices = (group_calls.thread, group_calls.begin_ns, group_calls.end_ns)
        columns = *numbers, *(matrix[call, column] for matrix in matrices)
        named_columns = dict(zip(_ENTRY_COLUMNS, columns, strict=True))
        group_entries.append(pl.DataFrame(named_columns, schema=group_entries[0].schema))
    stream = ("worker", "thread")
    previous = pl.col("group", "call", "end_ns").shift().over(*stream)
    entries = pl.concat(group_entries).sort(*stream, "begin_ns", maintain_order=True)
    entries = entries.with_columns(previous.name.prefix("previous_"))
    gap_ns = pl.col("begin_ns") - pl.col("previous_end_ns")
    overlap_count = (gap_ns < -MAX_QUEUE_GAP_NS).sum().over(*stream)
    reduction_groups = [group for group, one in enumerate(calls) if one.operation in REDUCTIONS]
    groups_with_departure = [group for group, one in enumerate(calls) if not one.is_rooted]
    # A call with a root has no departure that another one could follow.
    queued = entries.filter(
        gap_ns.abs() <= MAX_QUEUE_GAP_NS,
        overlap_count <= MAX_SHARE_OF_OVERLAPS_OF_STREAM * pl.len().over(*stream),
        pl.col("group").is_in(reduction_groups),
        pl.col("previous_group").is_in(groups_with_departure),
    )
    columns_to_check = ("worker", "previous_end_ns", "begin_ns")
    has_resumed = timeline.has_resumed(*(queued[name].to_numpy() for name in columns_to_check))
    return queued.filter(pl.Series(~has_resumed))


def add_queue_edges(edges: EdgeList, entries: pl.DataFrame, calls: Sequence[Calls]) -> None:
    """Add edges to queued calls' departures from completions of the calls before in their stream.

    `entries` has one row per rank of a call that was queued: the call (`group`, `call`), and the one
    before.
    """
    groups = ("group", "previous_group")
    for group_entries in entries.sort(groups).partition_by(groups):
        group, previous_group = group_entries["group"][0], group_entries["previous_group"][0]
        previous_calls = group_entries["previous_call"].to_numpy()
        completion_ns = calls[previous_group].completion_ns[previous_calls]
        lag_ns = np.maximum(group_entries["begin_ns"].to_numpy() - completion_ns, 0)
        # One edge for each pair of calls: that of the rank with the longest lag.
        with_lags = group_entries.with_columns(lag_ns=lag_ns).group_by("call", "previous_call")
        longest_lags = with_lags.agg(pl.col("lag_ns").max()).sort("call", "previous_call")
        call, previous_call, lag_ns = longest_lags.to_numpy().T
        source = calls[previous_group].departure_events[previous_call] + 1
        edges.add(source, calls[group].departure_events[call], lag_ns)


def estimate_ready_calls(
    calls: Sequence[Calls],
    queued_entries: pl.DataFrame,
    timeline: Timeline,
    worker_steps: Sequence[pl.DataFrame],
) -> list[Calls]:
    """Return the calls with `begin_ns` when each rank was ready, also of those that queued.

    `queued_entries` has one row per rank of a call that was queued, `worker_steps` one per step.
    """
    ready_calls = [*calls]
    if queued_entries.is_empty():
        return ready_calls
    worker_backprops = [*map(_Backprop, timeline.worker_pieces, worker_steps)]
    for (group,), group_entries in queued_entries.partition_by("group", as_dict=True).items():
        is_queued = np.zeros(calls[group].begin_ns.shape, np.bool_)
        is_queued[group_entries["call"].to_numpy(), group_entries["column"].to_numpy()] = True
        ready_calls[group] = _estimate_group(calls[group], is_queued, worker_backprops)
    return ready_calls


def _estimate_group(calls: Calls, is_queued: Flags, backprops: Sequence[_Backprop]) -> Calls:
    """Return calls of one kind with `begin_ns` when each rank was ready; `is_queued` is [call, rank]."""
    begin_shares, estimate_ns = np.empty((2, *calls.begin_ns.shape))  # [call, rank]
    rank_backprops = [backprops[worker] for worker in calls.workers.tolist()]
    for rank, backprop in enumerate(rank_backprops):
        begin_shares[:, rank] = backprop.measure_share(calls.step_numbers, calls.begin_ns[:, rank])
    ready_shares = _estimate_shares(calls, begin_shares, is_queued)
    for rank, backprop in enumerate(rank_backprops):
        estimate_ns[:, rank] = backprop.find_time_ns(calls.step_numbers, ready_shares[:, rank])
    is_known = is_queued & np.isfinite(estimate_ns)
    ready_ns = np.where(is_known, np.nan_to_num(estimate_ns), calls.begin_ns).astype(np.int64)
    # A call is not ready before the one before it: gradients come in the order of calls.
    ready_ns = np.minimum(np.maximum.accumulate(ready_ns, axis=0), calls.begin_ns)
    return replace(calls, begin_ns=np.where(is_known, ready_ns, calls.begin_ns))


def _estimate_shares(calls: Calls, shares: Floats, is_queued: Flags) -> Floats:
    """Return the share of backprop that is done when each rank is ready, [call, rank].

    `shares` is what is done when calls begin, as `is_queued` [call, rank]. Calls of one kind have the
    same position in steps of as many calls; their share is known from those that did not queue, else
    interpolated by bytes.
    """
    position, calls_of_step, bytes_share = _find_positions_in_step(calls)
    kinds, kind = np.unique(np.stack([calls_of_step, position]), axis=1, return_inverse=True)
    kind_calls_of_step, kind = kinds[0], kind.ravel()  # [kind], and the kind of each call, [call]
    kind_shares = np.full((len(kind_calls_of_step), shares.shape[1]), np.nan)  # [kind, rank]
    max_shares = np.ones_like(kind_shares)  # when queued ones begin, they are ready
    for number in range(len(kind_shares)):
        rows = np.flatnonzero(kind == number)
        kind_shares[number] = _measure_shares(np.where(is_queued[rows], np.nan, shares[rows]))
        queued_shares = shares[rows][is_queued[rows]]
        if (known_shares := queued_shares[np.isfinite(queued_shares)]).size:
            max_shares[number] = np.quantile(known_shares, QUANTILE_OF_QUEUED_CALLS)
    bytes_done = np.zeros(len(kind_shares))  # share of the step's bytes, [kind]
    bytes_done[kind] = bytes_share
    for call_count in np.unique(kind_calls_of_step).tolist():
        rows = np.flatnonzero(kind_calls_of_step == call_count)
        for rank in range(kind_shares.shape[1]):
            shares_of_rank = kind_shares[rows, rank]
            kind_shares[rows, rank] = _fill_unknown_shares(shares_of_rank, bytes_done[rows])
    return np.asarray(np.minimum(kind_shares, max_shares)[kind])


def _find_positions_in_step(calls: Calls) -> tuple[Ints, Ints, Floats]:
    """Return each call's position in its step, the step's number of calls, and its bytes until then.

    The latter are a share of the step's bytes, with the call's own; all are [call].
    """
    is_first = np.append(True, np.diff(calls.step_numbers) != 0)
    first_call, step_row = np.flatnonzero(is_first), np.cumsum(is_first) - 1  # [step], [call]
    nbytes = np.maximum(calls.nbytes, 1).astype(np.float64)
    summed_bytes = np.cumsum(nbytes)
    bytes_before_step = (summed_bytes - nbytes)[first_call][step_row]
    step_bytes = np.bincount(step_row, nbytes)[step_row]
    position = np.arange(calls.call_count) - first_call[step_row]
    bytes_share = (summed_bytes - bytes_before_step) / step_bytes
    return position, np.bincount(step_row)[step_row], bytes_share


def _measure_shares(shares: Floats) -> Floats:
    """Return each rank's median share, [rank], of [call, rank]; of few that of all, or nan (unknown)."""
    is_known = np.isfinite(shares)
    if np.count_nonzero(is_known) < MIN_UNQUEUED_CALLS:
        return np.full(shares.shape[1], np.nan)
    medians = np.full(shares.shape[1], np.median(shares[is_known]))
    for rank in np.flatnonzero(np.count_nonzero(is_known, axis=0) >= MIN_UNQUEUED_CALLS):
        medians[rank] = np.median(shares[is_known[:, rank], rank])
    return medians


def _fill_unknown_shares(shares: Floats, bytes_done: Floats) -> Floats:
    """Fill in unknown shares (nan), [kind], by bytes (`bytes_done`, 0 to 1) between known ones."""
    known = np.flatnonzero(np.isfinite(shares))
    known_bytes = np.concatenate([[0.0], bytes_done[known], [1.0]])
    known_shares = np.maximum.accumulate(np.concatenate([[0.0], shares[known], [1.0]]))
    return np.where(np.isfinite(shares), shares, np.interp(bytes_done, known_bytes, known_shares))


class _Backprop:
    """The progress of a worker's backprop in its steps, by time; `steps` has a row per step.

    `_done_ns` is how much of it was done in all at each bound of the worker's pieces, [bound], and at
    the begin and end of steps, [step].
    """

    def __init__(self, pieces: WorkerPieces, steps: pl.DataFrame) -> None:
        self._bounds_ns, self._step_numbers = pieces.bounds_ns, steps["step"].to_numpy()
        step_times_ns = (steps[name].to_numpy() for name in ("start_ns", "end_ns"))
        self._done_ns, self._done_at_begin_ns, self._done_at_end_ns = (
            pieces.sum_ns_before(IS_BACKPROP, times_ns)
            for times_ns in (pieces.bounds_ns, *step_times_ns)
        )

    def measure_share(self, step_numbers: Ints, times_ns: Ints) -> Floats:
        """Return the share of its step's backprop that is done at each time; nan without backprop."""
        before_step_ns, step_ns = self._measure_steps_ns(step_numbers)
        done_ns = np.interp(times_ns, self._bounds_ns, self._done_ns)
        return np.clip((done_ns - before_step_ns) / step_ns, 0.0, 1.0)

    def find_time_ns(self, step_numbers: Ints, share: Floats) -> Floats:
        """Return when a share (0 to 1) of a step's backprop was done, ns, all [query]; else nan."""
        before_step_ns, step_ns = self._measure_steps_ns(step_numbers)
        target_ns = np.nan_to_num(before_step_ns + share * step_ns)  # of backprop done
        # Half a nanosecond: sums of shares differ from the whole by less.
        bound_row = np.searchsorted(self._done_ns, target_ns - 0.5)
        bound_row = np.minimum(bound_row, len(self._bounds_ns) - 1)
        time_ns = self._bounds_ns[bound_row] - (self._done_ns[bound_row] - target_ns)
        return np.where(np.isfinite(share * step_ns), time_ns, np.nan)

    def _measure_steps_ns(self, step_numbers: Ints) -> tuple[Floats, Floats]:
        """Return the backprop done before each step, and that of the step, ns; nan without any.

        Both are [step], as `step_numbers`.
        """
        row = np.minimum(
            np.searchsorted(self._step_numbers, step_numbers), len(self._step_numbers) - 1
        )
        step_ns = self._done_at_end_ns[row] - self._done_at_begin_ns[row]
        is_known = (self._step_numbers[row] == step_numbers) & (step_ns > 0)
        return self._done_at_begin_ns[row], np.where(is_known, step_ns, np.nan)
