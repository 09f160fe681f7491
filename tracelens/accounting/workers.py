"""Accounts for the time of single workers, wherever their events can be read.

Small ones go several at a time (`joined.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from tracelens.accounting.categories import NOTHING
from tracelens.accounting.joined import Joined, grouped
from tracelens.accounting.partition import Intervals, Surroundings, partition
from tracelens.accounting.pieces import PackedPieces
from tracelens.accounting.thread_activity import ACTIVITY_COLUMNS, ThreadActivity, shows_waits
from tracelens.accounting.unshown_waits import find_unshown_waits
from tracelens.accounting.weight_updates import Updates, sharing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.accounting.partition import Pieces
    from tracelens.arrays import Array, Indices, Int32s, Ints
    from tracelens.memory import BoundedCache
    from tracelens.model.columns import Columns
    from tracelens.model.events import Source

__all__ = ["AMOUNTS", "Accounted", "Amounts", "Task", "account"]

Amounts: TypeAlias = "tuple[Array, Array]"
AMOUNTS: Final = ("tokens", "samples")  # of work, as counters of steps tell it


@dataclass(frozen=True, eq=False)
class Accounted:
    """What a worker's time came to, by step window, and what it was cut into.

    `spent` is of those `categories` that occur, [category, step window]; it and `hidden` are in the
    smallest type of two that holds both.
    """

    pieces: PackedPieces
    categories: Indices
    spent: Array
    hidden: Array
    updates: Updates
    amounts: dict[str, Amounts]  # by name: steps, and how much work there was in each
    spans: int


@dataclass(frozen=True, eq=False)
class Task:
    """What accounts for one worker's time: its events, and what is known of the other ranks'.

    `windows` are the bounds of its steps, of which `gaps` are none: there steps were left out as asked.
    Of every `every`-th step updates are followed.
    """

    process: int
    source: Source
    windows: Ints
    gaps: Ints
    wait: Intervals
    queue: Intervals
    training: int | None
    tracks: tuple[int, ...]
    words: tuple[str, ...]
    every: int


def account(tasks: Sequence[Task], cache: BoundedCache) -> list[Accounted]:
    """Account for the time of some workers; runs wherever their events can be read."""
    read = ((task, task.source.columns(task.process, _READ, cache)) for task in tasks)
    groups = grouped(read, lambda one: one[1].height)
    return [
        account
        for group in groups
        for account in _accounted_some(*zip(*group, strict=True), cache=cache)
    ]


def _accounted_some(
    tasks: Sequence[Task], columns: Sequence[Columns], *, cache: BoundedCache
) -> list[Accounted]:
    alike = {
        (task.training, task.tracks, shows_waits(one, task.training))
        for task, one in zip(tasks, columns, strict=True)
    }
    timed_on_device = any("device_duration_ns" in one for one in columns)
    fits = Joined.fits([task.windows for task in tasks])
    if len(tasks) > 1 and len(alike) == 1 and fits and not timed_on_device:
        return _accounted_joined(tasks, columns, cache)
    return [_accounted_alone(task, one, cache) for task, one in zip(tasks, columns, strict=True)]


def _accounted_alone(task: Task, columns: Columns, cache: BoundedCache) -> Accounted:
    activity = ThreadActivity(columns, task.training, task.tracks, cache)
    ends = task.windows[[0, -1]]
    found = _partition(activity, task.wait, task.queue, task.windows, task.gaps, bounds=ends)
    found = replace(found, name=_names(columns, task.words)[found.name])
    spans = int(np.count_nonzero(columns.is_span))
    return _accounted(task, columns, found, _rows_of(activity), spans, cache=cache)


def _accounted_joined(
    tasks: Sequence[Task], columns: Sequence[Columns], cache: BoundedCache
) -> list[Accounted]:
    windows = [task.windows for task in tasks]
    places = Joined.of(windows, columns)
    joined = places.columns(columns)
    activity = ThreadActivity(joined, tasks[0].training, tasks[0].tracks, cache)
    counts = [len(task.windows) - 1 for task in tasks]
    before = np.cumsum([0, *counts])
    found = _partition(
        activity,
        places.intervals([task.wait for task in tasks]),
        places.intervals([task.queue for task in tasks]),
        places.windows(windows),
        np.concatenate([task.gaps + at for task, at in zip(tasks, before, strict=False)]),
        bounds=places.begins,
    )
    left = [count - len(task.gaps) for count, task in zip(counts, tasks, strict=True)]
    apart, spans = places.apart(found, left), places.counts(joined.is_span)
    names = _names(joined, tasks[0].words)
    every = zip(tasks, columns, apart, _shared_rows(places, activity), spans, strict=True)
    return [
        _accounted(task, one, replace(pieces, name=names[pieces.name]), rows, count, cache=cache)
        for task, one, pieces, rows, count in every
    ]


def _shared_rows(places: Joined, activity: ThreadActivity) -> Iterator[tuple[Indices, ...]]:
    """Yield `_rows_of` of each process, the same arrays for those of which they are equal."""
    rows = _rows_of(activity)
    found = (
        tuple(places.rows_of(place, some) for some in rows) for place in range(len(places.first_ns))
    )
    for shared in accumulate(found, sharing):
        for some in shared:
            some.setflags(write=False)
        yield shared


def _partition(
    activity: ThreadActivity,
    wait: Intervals,
    queue: Intervals,
    windows: Ints,
    gaps: Ints,
    *,
    bounds: Ints,
) -> Pieces:
    """Cut time into pieces; `bounds` are where each worker's begins, and where the last one's ends."""
    edges = int(windows[0]), int(windows[-1])
    spans = activity.thread_spans.within(*edges)
    unshown = find_unshown_waits(spans, activity.unshown_flights.within(*edges), bounds)
    around = Surroundings(
        wait=wait,
        queue=queue,
        flying=activity.in_flight,
        stopped=activity.flights_on_device.joined_with(unshown),
        cause=activity.idle_causes,
        device=activity.device_spans,
    )
    return partition(spans, around, windows).without(gaps)


def _rows_of(activity: ThreadActivity) -> tuple[Indices, ...]:
    """Return the rows of a worker that `Updates.of` asks for."""
    return activity.updates, activity.forward, activity.passes


def _accounted(
    task: Task,
    columns: Columns,
    found: Pieces,
    rows: tuple[Indices, ...],
    spans: int,
    *,
    cache: BoundedCache,
) -> Accounted:
    """Put together what a worker's time came to; pieces have names as all workers number them."""
    occurring = np.flatnonzero(found.spent.any(axis=0))
    spent = found.spent.T[occurring]
    most = max(spent.max(initial=0), found.hidden.max(initial=0))
    small = np.int32 if most <= np.iinfo(np.int32).max else np.int64
    return Accounted(
        PackedPieces.of(found, found.name),
        occurring,
        spent.astype(small),
        found.hidden.astype(small),
        Updates.of(columns, *rows, every=task.every, cache=cache),
        _amounts(columns, cache),
        spans,
    )


def _names(columns: Columns, words: Sequence[str]) -> Int32s:
    """Return for each name of a file its number among `words`; the last one is that of none."""
    numbers = {word: number for number, word in enumerate(words)}
    known = columns.word("name").known
    return np.array([*(numbers.get(word, NOTHING) for word in known), NOTHING], np.int32)


_READ: Final = (*ACTIVITY_COLUMNS, "step", "bucket", "value")


def _amounts(columns: Columns, cache: BoundedCache) -> dict[str, Amounts]:
    """Return how much work each step had, by the counters that say so."""
    if "value" not in columns:
        return {}
    words = [columns.word(name) for name in ("type", "kind", "name")]
    found: dict[str, Amounts] = cache.get_or_make(
        "amounts of work",
        [*(word.codes for word in words), columns.number("step"), columns.values["value"]],
        partial(_sum_amounts, columns),
        *(word.known for word in words),
    )
    return found


def _sum_amounts(columns: Columns) -> dict[str, Amounts]:
    name, value = columns.word("name"), columns.values["value"]
    counters = np.flatnonzero(columns.word("type").among(("counter",)))
    of_steps = columns.word("kind").taken(counters).among(("step",))
    counters = counters[of_steps & np.isfinite(value[counters])]
    found = {}
    for amount in AMOUNTS:
        rows = counters[name.taken(counters).among((amount,))]
        if len(rows):
            step, place = np.unique(columns.number("step")[rows], return_inverse=True)
            found[amount] = step, np.bincount(place, value[rows])
    return found
