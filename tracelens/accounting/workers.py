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

    `window_bounds` are the bounds of its steps; in `gaps` steps were left out as asked.
    Of every n-th step (`follow_interval`) updates are followed.
    """

    process: int
    source: Source
    window_bounds: Ints
    gaps: Ints
    wait: Intervals
    queue: Intervals
    training_thread: int | None
    flight_tracks: tuple[int, ...]
    span_names: tuple[str, ...]
    follow_interval: int


def account_all(tasks: Sequence[Task], cache: BoundedCache) -> list[Account]:
    """Account for the time of some workers; runs wherever their events can be read."""
    return [_account(task, cache) for task in tasks]


def _account(task: Task, cache: BoundedCache) -> Account:
    """Account for one worker's time."""
    columns = task.source.columns(task.process, _COLUMNS, cache)
    activity = find_activity(columns, task.training_thread, task.flight_tracks, cache)
    pieces = _partition(task, columns, activity)
    categories = np.flatnonzero(pieces.spent.any(axis=0))
    spent_ns = pieces.spent.T[categories]
    most_ns = max(spent_ns.max(initial=0), pieces.hidden.max(initial=0))
    number_type = np.int32 if most_ns <= np.iinfo(np.int32).max else np.int64
    names = _number_names(columns, task.span_names)[pieces.name]
    return Account(
        PackedPieces.from_pieces(pieces, names),
        categories,
        spent_ns.astype(number_type),
        pieces.hidden.astype(number_type),
        Updates.from_activity(columns, activity, every=task.follow_interval, cache=cache),
        _read_amounts(columns, cache),
        int(np.count_nonzero(columns.is_span)),
    )


def _partition(task: Task, columns: Columns, activity: ThreadActivity) -> Pieces:
    """Cut a worker's time into pieces; `columns` are its events, `activity` says what they mean."""
    first_ns, last_ns = int(task.window_bounds[0]), int(task.window_bounds[-1])
    spans = activity.read_thread_spans(columns).clip(first_ns, last_ns)
    unshown_flights = read_intervals(columns, activity.unshown_flights).clip(first_ns, last_ns)
    flights, device_flights = activity.flights
    around = Surroundings(
        wait=task.wait,
        queue=task.queue,
        flying=read_intervals(columns, flights, device_flights),
        stopped=Intervals.concatenate(
            read_intervals(columns, flights[:0], device_flights),
            find_unshown_waits(spans, unshown_flights, first_ns, last_ns),
        ),
        cause=read_intervals(columns, *activity.idle_causes),
        device=activity.read_device_work(columns),
    )
    return partition(spans, around, task.window_bounds).without_gaps(task.gaps)


def _number_names(columns: Columns, shared_names: Sequence[str]) -> Int32s:
    """Return for each name of a file its number among `shared_names`; the last one is that of none."""
    number_by_word = {word: number for number, word in enumerate(shared_names)}
    names = columns.word_column("name").known
    return np.array([*(number_by_word.get(name, NOTHING) for name in names), NOTHING], np.int32)


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
    """Return the steps that counters tell of, and the sum in each, by the name of the amount."""
    names, values = columns.word_column("name"), columns.values["value"]
    counter_rows = np.flatnonzero(columns.word_column("type").is_in(("counter",)))
    is_of_step = columns.word_column("kind").take(counter_rows).is_in(("step",))
    counter_rows = counter_rows[is_of_step & np.isfinite(values[counter_rows])]
    amounts = {}
    for amount in AMOUNTS:
        amount_rows = counter_rows[names.take(counter_rows).is_in((amount,))]
        if len(amount_rows):
            step, index = np.unique(columns.number("step")[amount_rows], return_inverse=True)
            amounts[amount] = step, np.bincount(index, values[amount_rows])
    return amounts
