"""Accounts for the time of single workers, wherever their events can be read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from tracelens.accounting.categories import NOTHING
from tracelens.accounting.pieces import PackedPieces
from tracelens.accounting.spans import Surroundings
from tracelens.accounting.sweep import partition
from tracelens.accounting.thread_activity import ACTIVITY_COLUMNS, find_activity, read_intervals
from tracelens.accounting.unshown_waits import find_unshown_waits
from tracelens.accounting.weight_updates import Updates
from tracelens.model.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.accounting.spans import Pieces
    from tracelens.accounting.thread_activity import ThreadActivity
    from tracelens.arrays import Array, Indices, Int32s, Ints
    from tracelens.memory import BoundedCache
    from tracelens.model.columns import Columns
    from tracelens.model.events import Source

Amounts: TypeAlias = "tuple[Array, Array]"  # steps, and how much work there was in each
AMOUNTS: Final = ("tokens", "samples")  # of work, as counters of steps tell it
_COLUMNS: Final = (*ACTIVITY_COLUMNS, "step", "bucket", "value")


@dataclass(frozen=True, eq=False)
class Account:
    """What a worker's time came to, by step window, and what it was cut into.

    `spent` is of those `categories` that occur, [category, step window]; it and `hidden`, both ns, are
    in the smallest type of two that holds both.
    """

    pieces: PackedPieces
    categories: Indices
    spent: Array
    hidden: Array
    updates: Updates
    amounts: dict[str, Amounts]  # by name
    span_count: int


@dataclass(frozen=True, eq=False)
class Task:
    """What accounts for one worker's time: its events, and what is known of the other ranks'.

    `windows` are the bounds of its steps; in `gaps` steps were left out as asked.
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


def account_all(tasks: Sequence[Task], cache: BoundedCache) -> list[Account]:
    """Account for the time of some workers; runs wherever their events can be read."""
    return [_account(task, cache) for task in tasks]


def _account(task: Task, cache: BoundedCache) -> Account:
    columns = task.source.columns(task.process, _COLUMNS, cache)
    activity = find_activity(columns, task.training, task.tracks, cache)
    pieces = _partition(task, columns, activity)
    occurring = np.flatnonzero(pieces.spent.any(axis=0))
    spent = pieces.spent.T[occurring]
    most_ns = max(spent.max(initial=0), pieces.hidden.max(initial=0))
    small = np.int32 if most_ns <= np.iinfo(np.int32).max else np.int64
    names = _number_names(columns, task.words)[pieces.name]
    return Account(
        PackedPieces.from_pieces(pieces, names),
        occurring,
        spent.astype(small),
        pieces.hidden.astype(small),
        Updates.from_activity(columns, activity, every=task.every, cache=cache),
        _read_amounts(columns, cache),
        int(np.count_nonzero(columns.is_span)),
    )


def _partition(task: Task, columns: Columns, activity: ThreadActivity) -> Pieces:
    first, last = int(task.windows[0]), int(task.windows[-1])
    spans = activity.read_thread_spans(columns).clip(first, last)
    unshown = read_intervals(columns, activity.unshown_flights).clip(first, last)
    flights, device_flights = activity.flights
    around = Surroundings(
        wait=task.wait,
        queue=task.queue,
        flying=read_intervals(columns, flights, device_flights),
        stopped=Intervals.concatenate(
            read_intervals(columns, flights[:0], device_flights),
            find_unshown_waits(spans, unshown, first, last),
        ),
        cause=read_intervals(columns, *activity.idle_causes),
        device=activity.read_device_work(columns),
    )
    return partition(spans, around, task.windows).without_gaps(task.gaps)


def _number_names(columns: Columns, words: Sequence[str]) -> Int32s:
    """Return for each name of a file its number among `words`; the last one is that of none."""
    numbers = {word: number for number, word in enumerate(words)}
    names = columns.word_column("name").known
    return np.array([*(numbers.get(name, NOTHING) for name in names), NOTHING], np.int32)


def _read_amounts(columns: Columns, cache: BoundedCache) -> dict[str, Amounts]:
    """Read how much work each step had, by the counters that say so."""
    if "value" not in columns:
        return {}
    words = [columns.word_column(name) for name in ("type", "kind", "name")]
    return cache.get_or_make(
        "amounts of work",
        [*(word.codes for word in words), columns.number("step"), columns.values["value"]],
        partial(_sum_amounts, columns),
        *(word.known for word in words),
    )


def _sum_amounts(columns: Columns) -> dict[str, Amounts]:
    name, value = columns.word_column("name"), columns.values["value"]
    counters = np.flatnonzero(columns.word_column("type").is_in(("counter",)))
    is_of_step = columns.word_column("kind").take(counters).is_in(("step",))
    counters = counters[is_of_step & np.isfinite(value[counters])]
    amounts = {}
    for amount in AMOUNTS:
        rows = counters[name.take(counters).is_in((amount,))]
        if len(rows):
            step, index = np.unique(columns.number("step")[rows], return_inverse=True)
            amounts[amount] = step, np.bincount(index, value[rows])
    return amounts
