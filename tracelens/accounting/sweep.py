"""One pass over all moments at which anything of a thread changes: in C, or in numpy if it is not built.

Between two neighbouring moments nothing changes. Spans get levels by how many others are open when they
begin, and within a level the latest begun counts: so the deepest active level is the innermost span, and
overlaps that should not exist still give each nanosecond to one span.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

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
from tracelens.arrays import Array

if TYPE_CHECKING:
    from types import ModuleType

    from tracelens.arrays import Flags, Indices, Int8s, Int16s, Int32s, Ints

__all__ = ["Covers", "Cut", "Edges", "Layers", "cut", "cut_in_numpy"]

_Code: TypeAlias = Array | int
_REVISION: Final = 3  # number: of the interface to _sweep.c, which has the same [definition]
_HALF_BITS: Final = 31  # bits: of the lower half of a sum [definition]
_HALF: Final = (1 << _HALF_BITS) - 1


class Edges(NamedTuple):
    """When intervals begin and when intervals end, each sorted for itself."""

    begins: Ints
    ends: Ints


class Covers(NamedTuple):
    """What may cover a moment, whatever the thread does: see `partition.Surroundings`."""

    wait: Edges
    queue: Edges
    flying: Edges
    stopped: Edges
    cause: Edges


@dataclass(frozen=True, eq=False)
class Layers:
    """Spans, outer ones before inner ones; `code` is a category, or one that stands beside them."""

    start: Ints
    end: Ints
    code: Int16s
    name: Int32s

    @property
    def edges(self) -> Edges:
        """Begins, which are in order, and ends in order."""
        return Edges(self.start, np.sort(self.end, kind="stable"))


class Cut(NamedTuple):
    """What a thread's time was cut into, and what that comes to: as in `partition.Pieces`."""

    bounds: Ints
    step: Int32s
    category: Int8s
    name: Int32s
    spent: Ints
    hidden: Ints


def _native() -> ModuleType | None:
    if os.environ.get("TRACELENS_NATIVE") == "0":
        return None
    try:
        from tracelens.accounting import _sweep  # noqa: PLC0415 - only if it was built
    except ImportError:
        return None
    return _sweep if _REVISION == _sweep.REVISION else None


_NATIVE: Final = _native()


def cut(windows: Ints, thread: Layers, covers: Covers, device: Layers) -> Cut:
    """Cut the time from ``windows[0]`` to ``windows[-1]``, within which all else lies."""
    if _NATIVE is None:
        return cut_in_numpy(windows, thread, covers, device)
    edges = [side for cover in covers for side in cover]
    parts = [(*part.edges, part.end, part.code, part.name) for part in (thread, device)]
    most = sum(map(len, (windows, *edges, *parts[0][:2], *parts[1][:2])))
    steps = len(windows) - 1
    room = Cut(
        bounds=np.empty(most + 1, np.int64),
        step=np.empty(most, np.int32),
        category=np.empty(most, np.int8),
        name=np.empty(most, np.int32),
        spent=np.zeros((steps, len(CATEGORIES)), np.int64),
        hidden=np.zeros(steps, np.int64),
    )
    given = (windows, *parts[0], *parts[1], *edges)
    count = _NATIVE.cut(tuple(map(np.ascontiguousarray, given)), tuple(room))
    return room._replace(
        bounds=room.bounds[: count + 1],
        step=room.step[:count],
        category=room.category[:count].copy(),  # which is kept
        name=room.name[:count],
    )


def cut_in_numpy(windows: Ints, thread: Layers, covers: Covers, device: Layers) -> Cut:
    """Do the same without the part in C."""
    sets = [(part.begins, part.ends) for part in covers]
    spans = [(part.start, part.end) for part in (thread, device)]
    bounds, places = _boundaries(windows, *spans, *sets)
    of_steps, of_thread, of_device, *of_sets = places
    wait, queue, flying, stopped, cause = (_covered(len(bounds), part) for part in of_sets)
    code, user, name = _innermost(len(bounds), thread, of_thread)
    split = _either(wait, WAIT, _either(queue, PS_QUEUE, TRANSFER))
    idle = _either(cause, IDLE, UNINSTRUMENTED)
    unrecorded = _either(user, USER, _either(flying & stopped, split, idle))
    category = _either(code == NOTHING, unrecorded, _either(code == COMMUNICATION, split, code))
    queued = code >= QUEUED
    if queued.any():
        category = _either(queued, _either(flying, split, code - QUEUED), category)
        name = np.where(queued & flying, NOTHING, name)
    if len(device.start):
        works, works_for_user, work = _innermost(len(bounds), device, of_device)
        works = _either((works == NOTHING) & works_for_user, USER, works)
        category = _either(works != NOTHING, works, category)
        name = np.where(works != NOTHING, work, name)
    count = len(windows) - 1
    step = np.repeat(np.arange(count, dtype=np.int32), np.diff(of_steps))
    own = (category <= USER) | (category == UNINSTRUMENTED)
    beside = np.flatnonzero(flying & own)
    hidden = _sums(step[beside], bounds[beside + 1] - bounds[beside], count)
    kept = np.flatnonzero(_differs(step, category, name))
    step, category = step[kept], category[kept]
    bounds = np.append(bounds[kept], bounds[-1])
    spent = _sums(step * len(CATEGORIES) + category, np.diff(bounds), count * len(CATEGORIES))
    return Cut(
        bounds=bounds,
        step=step,
        category=category.astype(np.int8),
        name=name[kept],
        spent=spent.reshape(count, len(CATEGORIES)),
        hidden=hidden,
    )


def _boundaries(windows: Ints, *sets: tuple[Ints, Ints]) -> tuple[Ints, list[Array]]:
    """Return all moments at which anything changes, and where among them each part's edges are.

    Of the windows that is one array; of each set [0] where it begins, [1] where it ends.
    """
    edges = np.concatenate([windows, *(edge for part in sets for edge in part)])
    order = np.argsort(edges, kind="stable")  # made of sorted runs, which that merges
    ordered = edges[order]
    new = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    places = np.empty(len(edges), np.int32)
    places[order] = np.cumsum(new, dtype=np.int32) - 1
    found: list[Array] = [places[: len(windows)]]
    begin = len(windows)
    for starts, _ in sets:
        count = len(starts)
        found.append(places[begin : begin + 2 * count].reshape(2, count))
        begin += 2 * count
    return ordered[new], found


def _sums(where: Array, values: Ints, size: int) -> Ints:
    """Add values up by place, exactly: as two halves, of which floating point loses nothing."""
    low = np.bincount(where, values & _HALF, minlength=size)
    if len(values) and int(values.max()) > _HALF:
        high = np.bincount(where, values >> _HALF_BITS, minlength=size)
        return low.astype(np.int64) + (high.astype(np.int64) << _HALF_BITS)
    return np.asarray(low.astype(np.int64))


def _differs(*columns: Array) -> Flags:
    """Return which rows differ from the one before."""
    new = np.ones(len(columns[0]), np.bool_)
    new[1:] = False
    for values in columns:
        new[1:] |= values[1:] != values[:-1]
    return new


def _either(where: Flags, this: _Code, that: _Code) -> Int16s:
    """Choose codes, in the smallest type that holds them."""
    small = [np.asarray(code, np.int16) for code in (this, that)]
    return np.where(where, *small)


def _covered(bounds: int, places: Array) -> Flags:
    """Return for each piece whether any interval covers it; `places` are those of begins and ends."""
    if not places.shape[1]:
        return np.zeros(bounds - 1, np.bool_)
    opened, closed = (np.bincount(part, minlength=bounds) for part in places)
    return np.asarray(np.cumsum(opened - closed)[:-1] > 0)


def _innermost(bounds: int, spans: Layers, places: Array) -> tuple[Int16s, Flags, Int32s]:
    """Return for each piece the innermost phase's code, whether user code is open, and the name."""
    size = bounds - 1
    begin, end = places
    meaning = np.append(spans.code, np.int16(NOTHING))
    is_user, user = meaning == USER, np.zeros(size, np.bool_)
    innermost = np.full(size, -1, np.int32)
    of_phase = innermost.copy() if is_user.any() else innermost
    over = np.cumsum(np.bincount(end, minlength=bounds))  # spans that have ended by each boundary
    levels = np.arange(len(begin)) - over[begin]
    for level in range(int(levels.max(initial=-1)) + 1):
        active = _laid_out(np.flatnonzero(levels == level), begin, end, size)
        covered = active >= 0
        np.copyto(innermost, active, where=covered)
        if of_phase is not innermost:
            of_user = is_user[active]
            user |= of_user
            np.copyto(of_phase, active, where=covered & ~of_user)
    name = np.append(spans.name, np.int32(NOTHING))
    return meaning[of_phase], user, name[innermost]


def _laid_out(spans: Indices, begin: Array, end: Array, size: int) -> Int32s:
    """Return for each piece which of some spans is active, the latest begun one; -1 where none is."""
    first = begin[spans]
    over = np.minimum(end[spans], np.append(first[1:], size))
    label, count = np.full(2 * len(spans) + 1, -1, np.int32), np.empty(2 * len(spans) + 1, np.int32)
    label[1::2], count[1::2] = spans, over - first
    count[:-1:2] = first - np.append(0, over[:-1])
    count[-1] = size - over[-1]
    return np.repeat(label, count)
