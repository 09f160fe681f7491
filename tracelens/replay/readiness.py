"""Estimate when reductions were ready that begin when their stream gets free.

A stream carries out one call after the other: a device profile shows a call from when the one before
has left the stream. When its data was ready lies earlier, and is not recorded. It was not queued if a
thread waited for the one before, and went on in between: then it was issued only then. A bucket of
gradients is ready when its share of backprop is done. That share is measured where calls of the same
place in their step did not queue. Between measured calls, and where none was measured, gradients come
in the order of the calls, and backprop takes as long for each byte of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from tracelens.replay.timeline import IS_BACKPROP

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from tracelens.accounting.pieces import WorkerPieces
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.replay.calls import Calls
    from tracelens.replay.links import Links
    from tracelens.replay.timeline import Timeline

__all__ = ["Queue", "estimate_ready_calls"]

# ns: a call that begins so soon after the one before was queued; kernels are 1 to
# 10 us apart [chosen]
MAX_QUEUE_GAP_NS: Final = 20_000
# share of calls: a thread with more calls that overlap is no stream [chosen]
MAX_SHARE_OF_OVERLAPS_OF_STREAM: Final = 0.01
# calls: fewer do not tell when calls of their place are ready [chosen]
MIN_UNQUEUED_CALLS: Final = 4
# share of queued calls: all are ready when so many have begun [chosen]
QUANTILE_OF_QUEUED_CALLS: Final = 0.05
_REDUCTIONS: Final = ("allreduce", "reduce_scatter")


@dataclass(frozen=True, eq=False)
class Queue:
    """Cells of calls that queued, each behind another call on its stream.

    `group` is the index of the `Calls`, `row` the call, `column` the rank; `before_group` and
    `before_row` are those of the call before it. `begin_ns` is when it had the stream.
    """

    group: Ints
    row: Ints
    column: Ints
    before_group: Ints
    before_row: Ints
    begin_ns: Ints

    @classmethod
    def from_calls(cls, calls: Sequence[Calls], timeline: Timeline) -> Self:
        """Find those reductions that begin when the call before leaves their stream."""
        parts = [np.zeros((7, 0), np.int64)]
        for number, call in enumerate(calls):
            column, row = np.nonzero(~call.stops.T)
            times = (values[row, column] for values in (call.thread, call.start, call.end))
            ids = np.full(len(row), number), row, column, call.worker[column]
            parts.append(np.stack([*ids, *times]))
        cells = np.concatenate(parts, axis=1)
        # Worker by worker, and stream by stream.
        group, row, column, worker, thread, begin, end = cells[:, np.lexsort(cells[[5, 4, 3]])]
        gap_ns = begin[1:] - end[:-1]
        same_thread = (worker[1:] == worker[:-1]) & (thread[1:] == thread[:-1])
        overlaps = same_thread & (gap_ns < -MAX_QUEUE_GAP_NS)
        of_thread = np.append(0, np.cumsum(~same_thread))
        overlap_count = np.bincount(of_thread[1:], overlaps, minlength=int(of_thread[-1]) + 1)
        is_stream = overlap_count <= MAX_SHARE_OF_OVERLAPS_OF_STREAM * np.bincount(of_thread)
        is_reduction = np.array([call.line.what in _REDUCTIONS for call in calls], np.bool_)
        holds_wire = np.array([not call.is_rooted for call in calls], np.bool_)
        queued = same_thread & (np.abs(gap_ns) <= MAX_QUEUE_GAP_NS) & is_stream[of_thread[1:]]
        queued &= is_reduction[group[1:]] & holds_wire[group[:-1]]
        queued &= ~timeline.has_resumed(worker[1:], end[:-1], begin[1:])
        after = np.flatnonzero(queued) + 1
        before = after - 1
        return cls(
            group[after], row[after], column[after], group[before], row[before], begin[after]
        )

    def mark(self, group: int, shape: tuple[int, int]) -> Flags:
        """Return True for the cells of some `Calls` that queued, [call, rank]."""
        is_queued = np.zeros(shape, np.bool_)
        cells = self.group == group
        is_queued[self.row[cells], self.column[cells]] = True
        return is_queued

    def add_links(self, links: Links, calls: Sequence[Calls]) -> None:
        """Let each queued call go no earlier than the one before it has left the stream."""
        for group in np.unique(self.group).tolist():
            for before in np.unique(self.before_group[self.group == group]).tolist():
                cells = (self.group == group) & (self.before_group == before)
                row, before_row = self.row[cells], self.before_row[cells]
                left_ns = calls[before].through[before_row]
                lag_ns = np.maximum(self.begin_ns[cells] - left_ns, 0)
                order = np.lexsort((lag_ns, before_row, row))
                pair = np.stack([row, before_row])[:, order]
                is_last = np.append((np.diff(pair) != 0).any(axis=0), True)
                row, before_row = pair[:, is_last]
                source, target = calls[before].wires[before_row] + 1, calls[group].wires[row]
                links.add(source, target, lag_ns[order][is_last])


def estimate_ready_calls(
    calls: Sequence[Calls],
    queue: Queue,
    pieces: Sequence[WorkerPieces],
    windows: Sequence[pl.DataFrame],
) -> list[Calls]:
    """Return the calls with `start` when each rank was ready, also of those that queued.

    Args:
        calls: As recorded.
        queue: Which of them queued.
        pieces: The partition of each worker's time.
        windows: The steps of each worker, in order.
    """
    if not len(queue.row):
        return [*calls]
    backprops = [*map(_Backprop, pieces, windows)]
    return [
        _estimate_group(call, queue.mark(group, call.start.shape), backprops)
        for group, call in enumerate(calls)
    ]


def _estimate_group(call: Calls, is_queued: Flags, backprops: Sequence[_Backprop]) -> Calls:
    """Return calls of one kind with `start` when each rank was ready."""
    if not is_queued.any():
        return call
    ranks = [backprops[worker] for worker in call.worker.tolist()]
    columns = [*zip(ranks, call.start.T, strict=True)]
    shares = np.stack([rank.share_at(call.step, begin) for rank, begin in columns], axis=1)
    ready_share = _estimate_shares(call, shares, is_queued)
    estimates = [
        rank.moment_of(call.step, share) for rank, share in zip(ranks, ready_share.T, strict=True)
    ]
    estimate = np.stack(estimates, axis=1)
    is_known = is_queued & np.isfinite(estimate)
    ready = np.where(is_known, np.nan_to_num(estimate), call.start).astype(np.int64)
    # A call is not ready before the one before it: gradients come in the order of calls.
    ready = np.minimum(np.maximum.accumulate(ready, axis=0), call.start)
    return replace(call, start=np.where(is_known, ready, call.start))


def _estimate_shares(call: Calls, shares: Floats, is_queued: Flags) -> Floats:
    """Return the share of backprop that is done when each rank is ready, [call, rank]."""
    place, count, bytes_share = _places_in_step(call)
    kinds, kind = np.unique(np.stack([count, place]), axis=1, return_inverse=True)
    kind = kind.ravel()
    estimates = np.full((kinds.shape[1], shares.shape[1]), np.nan)
    latest = np.ones_like(estimates)
    for number in range(kinds.shape[1]):
        rows = np.flatnonzero(kind == number)
        measured = np.where(is_queued[rows], np.nan, shares[rows])
        estimates[number] = _measure_shares(measured)
        queued = np.where(is_queued[rows], shares[rows], np.nan).ravel()
        if (known := queued[np.isfinite(queued)]).size:
            latest[number] = np.quantile(known, QUANTILE_OF_QUEUED_CALLS)
    bytes_done = np.zeros(kinds.shape[1])
    bytes_done[kind] = bytes_share
    for number in np.unique(kinds[0]).tolist():
        rows = np.flatnonzero(kinds[0] == number)
        for column in range(estimates.shape[1]):
            estimates[rows, column] = _interpolate(bytes_done[rows], estimates[rows, column])
    return np.asarray(np.minimum(estimates, latest)[kind])


def _places_in_step(call: Calls) -> tuple[Ints, Ints, Floats]:
    """Return of each call its place in its step, how many that has, and the bytes done until it."""
    is_first = np.append(True, np.diff(call.step) != 0)
    heads, number = np.flatnonzero(is_first), np.cumsum(is_first) - 1
    count = np.bincount(number)[number]
    sizes = np.maximum(call.nbytes, 1).astype(np.float64)
    done = np.cumsum(sizes)
    before = (done - sizes)[heads][number]
    total = np.bincount(number, sizes)[number]
    return np.arange(call.height) - heads[number], count, (done - before) / total


def _measure_shares(shares: Floats) -> Floats:
    """Return each rank's median of some shares, [call, rank]; of all ranks where one has too few."""
    known = np.isfinite(shares)
    if np.count_nonzero(known) < MIN_UNQUEUED_CALLS:
        return np.full(shares.shape[1], np.nan)
    of_all = float(np.median(shares[known]))
    return np.array(
        [
            np.median(share[there]) if np.count_nonzero(there) >= MIN_UNQUEUED_CALLS else of_all
            for share, there in zip(shares.T, known.T, strict=True)
        ]
    )


def _interpolate(bytes_done: Floats, shares: Floats) -> Floats:
    """Fill in shares that are not known, by the bytes between those that are."""
    known = np.flatnonzero(np.isfinite(shares))
    anchors = np.concatenate([[0.0], bytes_done[known], [1.0]])
    levels = np.maximum.accumulate(np.concatenate([[0.0], shares[known], [1.0]]))
    return np.where(np.isfinite(shares), shares, np.interp(bytes_done, anchors, levels))


class _Backprop:
    """How much backprop a worker has done, by time, and when it had done how much."""

    def __init__(self, pieces: WorkerPieces, windows: pl.DataFrame) -> None:
        self._bounds, self._steps = pieces.bounds, windows["step"].to_numpy()
        edges = (windows[name].to_numpy() for name in ("start_ns", "end_ns"))
        self._done_ns, self._first_ns, self._last_ns = (
            pieces.spent_before(IS_BACKPROP, moments) for moments in (pieces.bounds, *edges)
        )

    def share_at(self, step: Ints, moments: Ints) -> Floats:
        """Return which share of its step's backprop is done at each moment; nan of no backprop."""
        first_ns, length_ns = self._of_steps(step)
        done_ns = np.interp(moments, self._bounds, self._done_ns)
        return np.clip((done_ns - first_ns) / length_ns, 0.0, 1.0)

    def moment_of(self, step: Ints, share: Floats) -> Floats:
        """Return when a share of the step's backprop was done; nan of no backprop."""
        first_ns, length_ns = self._of_steps(step)
        wanted_ns = np.nan_to_num(first_ns + share * length_ns)
        # Half a nanosecond: sums of shares differ from the whole by less.
        place = np.searchsorted(self._done_ns, wanted_ns - 0.5)
        place = np.minimum(place, len(self._bounds) - 1)
        moment = self._bounds[place] - (self._done_ns[place] - wanted_ns)
        return np.where(np.isfinite(share * length_ns), moment, np.nan)

    def _of_steps(self, step: Ints) -> tuple[Floats, Floats]:
        """Return what was done before each step, and how long its backprop is; nan of none."""
        place = np.minimum(np.searchsorted(self._steps, step), len(self._steps) - 1)
        length_ns = self._last_ns[place] - self._first_ns[place]
        is_known = (self._steps[place] == step) & (length_ns > 0)
        return self._first_ns[place], np.where(is_known, length_ns, np.nan)
