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

_Code: TypeAlias = Array | int
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


def cut_time(windows: Ints, thread: Spans, around: Surroundings) -> Pieces:
    """Cut the time from ``windows[0]`` to ``windows[-1]``, within which all else lies."""
    if _NATIVE is None:
        return cut_in_numpy(windows, thread, around)
    covers = [side for cover in around.covers for side in (cover.start, cover.end)]
    spans = [
        (track.start, np.sort(track.end, kind="stable"), track.end, track.code, track.name)
        for track in (thread, around.device)
    ]
    max_bounds = len(windows) + sum(map(len, covers)) + sum(2 * len(track[0]) for track in spans)
    step_count = len(windows) - 1
    room = Pieces(
        bounds=np.empty(max_bounds + 1, np.int64),
        step=np.empty(max_bounds, np.int32),
        category=np.empty(max_bounds, np.int8),
        name=np.empty(max_bounds, np.int32),
        spent=np.zeros((step_count, len(CATEGORIES)), np.int64),
        hidden=np.zeros(step_count, np.int64),
    )
    arrays = map(np.ascontiguousarray, (windows, *spans[0], *spans[1], *covers))
    count = _NATIVE.cut(tuple(arrays), tuple(room))
    return room._replace(
        bounds=room.bounds[: count + 1],
        step=room.step[:count],
        category=room.category[:count].copy(),  # which is kept
        name=room.name[:count],
    )


def partition(
    spans: Spans,
    around: Surroundings,
    windows: Ints,
    sweep: Callable[[Ints, Spans, Surroundings], Pieces] = cut_time,
) -> Pieces:
    """Cut the time from ``windows[0]`` to ``windows[-1]``; `windows` are the bounds of the steps, ns."""
    first, last = int(windows[0]), int(windows[-1])
    around = around.clip(first, last)
    thread = spans.clip(first, last).resolve_blocking(around.wait, around.queue, around.flying)
    return sweep(windows, thread, around)


def cut_in_numpy(windows: Ints, thread: Spans, around: Surroundings) -> Pieces:
    """Do the same as `cut` without the part in C."""
    sets = [(part.start, part.end) for part in (thread, around.device)]
    sets += [(cover.start, cover.end) for cover in around.covers]
    bounds, of_steps, (of_thread, of_device, *of_covers) = _find_boundaries(windows, sets)
    wait, queue, flying, stopped, cause = (_covers(len(bounds), edges) for edges in of_covers)
    code, is_user, name = _find_innermost(len(bounds), thread, of_thread)
    split = _choose(wait, WAIT, _choose(queue, PS_QUEUE, TRANSFER))
    idle = _choose(cause, IDLE, UNINSTRUMENTED)
    unrecorded = _choose(is_user, USER, _choose(flying & stopped, split, idle))
    category = _choose(code == NOTHING, unrecorded, _choose(code == COMMUNICATION, split, code))
    is_queued = code >= QUEUED
    if is_queued.any():
        category = _choose(is_queued, _choose(flying, split, code - QUEUED), category)
        name = np.where(is_queued & flying, NOTHING, name)
    if len(around.device.start):
        work, is_user_work, work_name = _find_innermost(len(bounds), around.device, of_device)
        work = _choose((work == NOTHING) & is_user_work, USER, work)
        category = _choose(work != NOTHING, work, category)
        name = np.where(work != NOTHING, work_name, name)
    count = len(windows) - 1
    step = np.repeat(np.arange(count, dtype=np.int32), np.diff(of_steps))
    is_work = (category <= USER) | (category == UNINSTRUMENTED)
    hidden_rows = np.flatnonzero(flying & is_work)
    hidden = _sum_exactly(step[hidden_rows], bounds[hidden_rows + 1] - bounds[hidden_rows], count)
    is_new = np.ones(len(step), np.bool_)
    is_new[1:] = False
    for values in (step, category, name):
        is_new[1:] |= values[1:] != values[:-1]
    rows = np.flatnonzero(is_new)
    step, category, name = step[rows], category[rows], name[rows]
    bounds = np.append(bounds[rows], bounds[-1])
    cell = step * len(CATEGORIES) + category
    spent = _sum_exactly(cell, np.diff(bounds), count * len(CATEGORIES))
    spent = spent.reshape(count, len(CATEGORIES))
    return Pieces(bounds, step, category.astype(np.int8), name, spent, hidden)


def _find_boundaries(
    windows: Ints, sets: list[tuple[Ints, Ints]]
) -> tuple[Ints, Array, list[Array]]:
    """Return all moments at which anything changes, and the indices among them of all edges.

    Those of the windows are one array; those of each set are [0] of begins, [1] of ends.
    """
    edges = np.concatenate([windows, *(side for pair in sets for side in pair)])
    order = np.argsort(edges, kind="stable")  # made of sorted runs, which that merges
    ordered = edges[order]
    is_new = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    index = np.empty(len(edges), np.int32)
    index[order] = np.cumsum(is_new, dtype=np.int32) - 1
    cuts = np.cumsum([len(windows), *(2 * len(begins) for begins, _ in sets)])
    of_windows, *of_sets = np.split(index, cuts[:-1])
    return ordered[is_new], of_windows, [part.reshape(2, -1) for part in of_sets]


def _sum_exactly(where: Array, values: Ints, size: int) -> Ints:
    """Add values up by index, exactly: as two halves, which floating point holds exactly."""
    low = np.bincount(where, values & _HALF, minlength=size)
    if len(values) and int(values.max()) > _HALF:
        high = np.bincount(where, values >> _HALF_BITS, minlength=size)
        return low.astype(np.int64) + (high.astype(np.int64) << _HALF_BITS)
    return np.asarray(low.astype(np.int64))


def _choose(where: Flags, this: _Code, that: _Code) -> Int16s:
    """Choose codes, in the smallest type that holds them."""
    return np.where(where, np.asarray(this, np.int16), np.asarray(that, np.int16))


def _covers(bound_count: int, edges: Array) -> Flags:
    """Find which pieces any interval covers, by the indices of begins and ends, [piece]."""
    if not edges.shape[1]:
        return np.zeros(bound_count - 1, np.bool_)
    opened, closed = (np.bincount(side, minlength=bound_count) for side in edges)
    return np.asarray(np.cumsum(opened - closed)[:-1] > 0)


def _find_innermost(bound_count: int, spans: Spans, edges: Array) -> tuple[Int16s, Flags, Int32s]:
    """Find for each piece the innermost phase's code, whether user code is open, and the name."""
    count = bound_count - 1
    begin_index, end_index = edges
    code = np.append(spans.code, np.int16(NOTHING))
    is_user, has_user = code == USER, np.zeros(count, np.bool_)
    innermost = np.full(count, -1, np.int32)
    phase = innermost.copy() if is_user.any() else innermost
    ended = np.cumsum(np.bincount(end_index, minlength=bound_count))  # spans, by each boundary
    levels = np.arange(len(begin_index)) - ended[begin_index]
    for level in range(int(levels.max(initial=-1)) + 1):
        active = _lay_out(np.flatnonzero(levels == level), begin_index, end_index, count)
        is_active = active >= 0
        np.copyto(innermost, active, where=is_active)
        if phase is not innermost:
            has_user |= is_user[active]
            np.copyto(phase, active, where=is_active & ~is_user[active])
    name = np.append(spans.name, np.int32(NOTHING))
    return code[phase], has_user, name[innermost]


def _lay_out(rows: Indices, begin: Array, end: Array, count: int) -> Int32s:
    """Find which of some spans is active in each piece, the latest begun one; -1 where none is."""
    first_piece = begin[rows]
    stop_piece = np.minimum(end[rows], np.append(first_piece[1:], count))
    label, repeats = np.full((2, 2 * len(rows) + 1), -1, np.int32)
    label[1::2], repeats[1::2] = rows, stop_piece - first_piece
    repeats[:-1:2] = first_piece - np.append(0, stop_piece[:-1])
    repeats[-1] = count - stop_piece[-1]
    return np.repeat(label, repeats)
