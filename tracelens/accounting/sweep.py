"""Cuts one thread's time into touching pieces, each with exactly one category.

Where a device did the work, its time counts first: the thread only queued it. Then comes the thread's
other work, then communication, and last the queueing, which matters only while the device has nothing.

One pass goes over all moments at which anything changes: in C, or in numpy if that is not built. Spans
get levels by how many others are open when they begin, and within a level the latest begun counts: so
the deepest active level is the innermost span, and overlaps that should not exist still give each
nanosecond to one span.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from tracelens.accounting.categories import (
    CATEGORIES,
    COMMUNICATION,
    IDLE,
    NOTHING,
    PS_QUEUE,
    QUEUED,
    TRANSFER,
    UNINSTRUMENTED,
    USER,
    WAIT,
)
from tracelens.accounting.spans import Pieces
from tracelens.arrays import Array

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from tracelens.accounting.spans import Spans, Surroundings
    from tracelens.arrays import Flags, Indices, Int16s, Int32s, Ints

_Codes: TypeAlias = Array | int
_REVISION: Final = 3  # number: of the interface to _sweep.c, which has the same [definition]
_HALF_BITS: Final = 31  # bits: of the lower half of a sum [definition]
_HALF: Final = (1 << _HALF_BITS) - 1


def _load_native() -> ModuleType | None:
    if os.environ.get("TRACELENS_NATIVE") == "0":
        return None
    try:
        from tracelens.accounting import _sweep  # noqa: PLC0415 - only if it was built
    except ImportError:
        return None
    return _sweep if _REVISION == _sweep.REVISION else None


_NATIVE: Final = _load_native()


def cut_time(window_bounds_ns: Ints, thread: Spans, around: Surroundings) -> Pieces:
    """Cut the time from the first to the last bound, ns, [window + 1], within which all else lies.

    `thread` holds the spans of the training thread, `around` the rank's other work at the same time.
    """
    if _NATIVE is None:
        return cut_in_numpy(window_bounds_ns, thread, around)
    edges = [side for cover in around.interval_sets for side in (cover.start_ns, cover.end_ns)]
    span_arrays: list[Array] = []
    for spans in (thread, around.device_work):
        sorted_ends_ns = np.sort(spans.end_ns, kind="stable")
        span_arrays += [spans.start_ns, sorted_ends_ns, spans.end_ns]
        span_arrays += [spans.meaning_codes, spans.name_codes]
    span_count = len(thread.start_ns) + len(around.device_work.start_ns)
    max_bounds = len(window_bounds_ns) + sum(map(len, edges)) + 2 * span_count
    window_count = len(window_bounds_ns) - 1
    buffers = Pieces(
        bounds_ns=np.empty(max_bounds + 1, np.int64),
        window_indices=np.empty(max_bounds, np.int32),
        category_codes=np.empty(max_bounds, np.int8),
        name_codes=np.empty(max_bounds, np.int32),
        spent_ns=np.zeros((window_count, len(CATEGORIES)), np.int64),
        hidden_ns=np.zeros(window_count, np.int64),
    )
    arrays = map(np.ascontiguousarray, (window_bounds_ns, *span_arrays, *edges))
    piece_count = _NATIVE.cut(tuple(arrays), tuple(buffers))
    return buffers._replace(
        bounds_ns=buffers.bounds_ns[: piece_count + 1],
        window_indices=buffers.window_indices[:piece_count],
        category_codes=buffers.category_codes[:piece_count].copy(),  # which is kept
        name_codes=buffers.name_codes[:piece_count],
    )


def partition(
    spans: Spans,
    around: Surroundings,
    window_bounds_ns: Ints,
    sweep: Callable[[Ints, Spans, Surroundings], Pieces] = cut_time,
) -> Pieces:
    """Cut a worker's time from the first to the last bound of its windows (steps), ns, [window + 1].

    `spans` are those of the training thread, `around` is the rank's other work at the same time;
    `sweep` cuts by both.
    """
    first_ns, last_ns = int(window_bounds_ns[0]), int(window_bounds_ns[-1])
    around = around.clip(first_ns, last_ns)
    thread = spans.clip(first_ns, last_ns).resolve_blocking(
        around.wait_intervals, around.queue_intervals, around.flight_intervals
    )
    return sweep(window_bounds_ns, thread, around)


def cut_in_numpy(window_bounds_ns: Ints, thread: Spans, around: Surroundings) -> Pieces:
    """Do the same as `cut_time`, without the part in C.

    Categories and names are chosen for each stretch between two moments at which anything changes, and
    equal stretches that follow each other are joined.
    """
    interval_sets = [(spans.start_ns, spans.end_ns) for spans in (thread, around.device_work)]
    interval_sets += [(intervals.start_ns, intervals.end_ns) for intervals in around.interval_sets]
    bounds_ns, window_edges, (thread_edges, device_edges, *cover_edges) = _find_boundaries(
        window_bounds_ns, interval_sets
    )
    wait, queue, flying, stopped, cause = (
        _flag_covered(len(bounds_ns), edges) for edges in cover_edges
    )
    thread_code, is_user, name = _find_innermost(len(bounds_ns), thread, thread_edges)
    comm_code = _choose(wait, WAIT, _choose(queue, PS_QUEUE, TRANSFER))
    idle_code = _choose(cause, IDLE, UNINSTRUMENTED)
    uncovered_code = _choose(is_user, USER, _choose(flying & stopped, comm_code, idle_code))
    covered_code = _choose(thread_code == COMMUNICATION, comm_code, thread_code)
    category = _choose(thread_code == NOTHING, uncovered_code, covered_code)
    is_queued = thread_code >= QUEUED
    if is_queued.any():
        category = _choose(is_queued, _choose(flying, comm_code, thread_code - QUEUED), category)
        name = np.where(is_queued & flying, NOTHING, name)
    if len(around.device_work.start_ns):
        device_code, is_device_user, device_name = _find_innermost(
            len(bounds_ns), around.device_work, device_edges
        )
        device_code = _choose((device_code == NOTHING) & is_device_user, USER, device_code)
        category = _choose(device_code != NOTHING, device_code, category)
        name = np.where(device_code != NOTHING, device_name, name)
    window_count = len(window_bounds_ns) - 1
    window = np.repeat(np.arange(window_count, dtype=np.int32), np.diff(window_edges))
    is_work = (category <= USER) | (category == UNINSTRUMENTED)
    hidden_rows = np.flatnonzero(flying & is_work)
    lengths_ns = np.diff(bounds_ns)[hidden_rows]
    hidden_ns = _sum_exactly(window[hidden_rows], lengths_ns, window_count)
    is_changed = np.ones(len(window), np.bool_)
    is_changed[1:] = False
    for values in (window, category, name):
        is_changed[1:] |= values[1:] != values[:-1]
    first_rows = np.flatnonzero(is_changed)
    window, category, name = window[first_rows], category[first_rows], name[first_rows]
    bounds_ns = np.append(bounds_ns[first_rows], bounds_ns[-1])
    window_and_category = window * len(CATEGORIES) + category
    spent_ns = _sum_exactly(window_and_category, np.diff(bounds_ns), window_count * len(CATEGORIES))
    spent_ns = spent_ns.reshape(window_count, len(CATEGORIES))
    return Pieces(
        bounds_ns,
        window_indices=window,
        category_codes=category.astype(np.int8),
        name_codes=name,
        spent_ns=spent_ns,
        hidden_ns=hidden_ns,
    )


def _find_boundaries(
    window_bounds_ns: Ints, interval_sets: list[tuple[Ints, Ints]]
) -> tuple[Ints, Array, list[Array]]:
    """Return all moments at which anything changes, ns, and the index among them of every edge.

    Each set has begins and ends of intervals. Indices of the windows' bounds are one array; those of
    each set are [begin or end, interval].
    """
    edges_ns = np.concatenate(
        [window_bounds_ns, *(side for interval_set in interval_sets for side in interval_set)]
    )
    order = np.argsort(edges_ns, kind="stable")  # made of sorted runs, which that merges
    ordered_ns = edges_ns[order]
    is_new = np.ones(len(ordered_ns), np.bool_)
    np.not_equal(ordered_ns[1:], ordered_ns[:-1], out=is_new[1:])
    index = np.empty(len(edges_ns), np.int32)
    index[order] = np.cumsum(is_new, dtype=np.int32) - 1
    stops = np.cumsum([len(window_bounds_ns), *(2 * len(begins) for begins, _ in interval_sets)])
    window_edges, *set_edges = np.split(index, stops[:-1])
    return ordered_ns[is_new], window_edges, [indices.reshape(2, -1) for indices in set_edges]


def _sum_exactly(indices: Array, values: Ints, size: int) -> Ints:
    """Add values up by index, exactly: as two halves, which floating point holds exactly."""
    low = np.bincount(indices, values & _HALF, minlength=size)
    if len(values) and int(values.max()) > _HALF:
        high = np.bincount(indices, values >> _HALF_BITS, minlength=size)
        return low.astype(np.int64) + (high.astype(np.int64) << _HALF_BITS)
    return np.asarray(low.astype(np.int64))


def _choose(is_first: Flags, first: _Codes, second: _Codes) -> Int16s:
    """Choose between two codes for each piece, in the smallest type that holds them, [piece]."""
    return np.where(is_first, np.asarray(first, np.int16), np.asarray(second, np.int16))


def _flag_covered(bound_count: int, edges: Array) -> Flags:
    """Flag the pieces that any interval covers, [piece].

    `edges` are the indices of intervals' begins and ends among the bounds, [begin or end, interval].
    """
    if not edges.shape[1]:
        return np.zeros(bound_count - 1, np.bool_)
    begin_counts, end_counts = (np.bincount(indices, minlength=bound_count) for indices in edges)
    return np.asarray(np.cumsum(begin_counts - end_counts)[:-1] > 0)


def _find_innermost(bound_count: int, spans: Spans, edges: Array) -> tuple[Int16s, Flags, Int32s]:
    """Find for each piece the code of the innermost phase, whether user code is open, and a name.

    The name, a code, is that of the innermost span. `edges` are the indices of spans' begins and ends
    among the bounds, [begin or end, span].
    """
    piece_count = bound_count - 1
    begin_index, end_index = edges
    codes = np.append(spans.meaning_codes, np.int16(NOTHING))  # of no span (index -1), the last one
    is_user, has_user = codes == USER, np.zeros(piece_count, np.bool_)
    innermost_span = np.full(piece_count, -1, np.int32)  # [piece], as those that follow
    innermost_phase = innermost_span.copy() if is_user.any() else innermost_span
    ended_count = np.cumsum(np.bincount(end_index, minlength=bound_count))  # spans, [bound]
    levels = np.arange(len(begin_index)) - ended_count[begin_index]
    for level in range(int(levels.max(initial=-1)) + 1):
        span_rows = np.flatnonzero(levels == level)
        active_span = _find_active_spans(span_rows, begin_index, end_index, piece_count)
        is_active = active_span >= 0
        np.copyto(innermost_span, active_span, where=is_active)
        if innermost_phase is not innermost_span:
            has_user |= is_user[active_span]
            np.copyto(innermost_phase, active_span, where=is_active & ~is_user[active_span])
    name_codes = np.append(spans.name_codes, np.int32(NOTHING))
    return codes[innermost_phase], has_user, name_codes[innermost_span]


def _find_active_spans(
    span_rows: Indices, begin_index: Array, end_index: Array, piece_count: int
) -> Int32s:
    """Find the span that is active in each piece, the latest begun one, [piece]; -1 where none is.

    Only some spans count (`span_rows`, by begin). Their begins and ends are indices of bounds, [span].
    """
    first_piece = begin_index[span_rows]
    stop_piece = np.minimum(end_index[span_rows], np.append(first_piece[1:], piece_count))
    span_and_gap_rows, repeats = np.full((2, 2 * len(span_rows) + 1), -1, np.int32)
    span_and_gap_rows[1::2], repeats[1::2] = span_rows, stop_piece - first_piece
    repeats[:-1:2] = first_piece - np.append(0, stop_piece[:-1])
    repeats[-1] = piece_count - stop_piece[-1]
    return np.repeat(span_and_gap_rows, repeats)
