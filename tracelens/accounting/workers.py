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
from tracelens.accounting.weight_updates import WorkerUpdates
from tracelens.model.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.accounting.spans import Pieces
    from tracelens.accounting.thread_activity import ThreadActivity
    from tracelens.arrays import Array, Indices, Int32s, Ints
    from tracelens.memory import BoundedCache
    from tracelens.model.columns import Columns
    from tracelens.model.events import Source

Amounts: TypeAlias = "tuple[Array, Array]"  # steps, and how much work a rank had in each
AMOUNTS: Final = ("tokens", "samples")  # of work, as counters of steps tell it
_COLUMNS: Final = (*ACTIVITY_COLUMNS, "step", "bucket", "value")


@dataclass(frozen=True, eq=False)
class Account:
    """What a worker's time came to, by step window, and what it was cut into.

    `spent_ns` is of the categories that occur (`category_codes`), [category, step window], `hidden_ns`
    the communication under own work, [step window]; both in the smallest type that holds both.
    """

    pieces: PackedPieces
    category_codes: Indices
    spent_ns: Array
    hidden_ns: Array
    weight_updates: WorkerUpdates
    amounts_by_name: dict[str, Amounts]
    span_count: int


@dataclass(frozen=True, eq=False)
class Task:
    """What accounts for one worker's time: its events, and what is known of the other ranks'.

    `window_bounds_ns` are the bounds of its steps; in `gap_windows` (indices) steps were left out as
    asked. `wait_intervals` are for ranks, `queue_intervals` those of its requests at shards. Updates are
    followed in every n-th step (`step_interval`).
    """

    process: int
    source: Source
    window_bounds_ns: Ints
    gap_windows: Ints
    wait_intervals: Intervals
    queue_intervals: Intervals
    training_thread: int | None
    flight_tracks: tuple[int, ...]
    span_names: tuple[str, ...]
    step_interval: int


def account_all(tasks: Sequence[Task], cache: BoundedCache) -> list[Account]:
    """Account for the time of some workers; runs wherever their events can be read."""
    return [_account(task, cache) for task in tasks]


def _account(task: Task, cache: BoundedCache) -> Account:
    """Account for one worker's time."""
    columns = task.source.read_columns(task.process, _COLUMNS, cache)
    activity = find_activity(columns, task.training_thread, task.flight_tracks, cache)
    pieces = _partition(task, columns, activity)
    category_codes = np.flatnonzero(pieces.spent_ns.any(axis=0))
    spent_ns = pieces.spent_ns.T[category_codes]
    most_ns = max(spent_ns.max(initial=0), pieces.hidden_ns.max(initial=0))
    number_type = np.int32 if most_ns <= np.iinfo(np.int32).max else np.int64
    name_code = _renumber_names(columns, task.span_names)[pieces.name_codes]
    return Account(
        pieces=PackedPieces.from_pieces(pieces, name_code),
        category_codes=category_codes,
        spent_ns=spent_ns.astype(number_type),
        hidden_ns=pieces.hidden_ns.astype(number_type),
        weight_updates=WorkerUpdates.from_activity(
            columns, activity, step_interval=task.step_interval, cache=cache
        ),
        amounts_by_name=_read_amounts(columns, cache),
        span_count=int(np.count_nonzero(columns.is_span)),
    )


def _partition(task: Task, columns: Columns, activity: ThreadActivity) -> Pieces:
    """Cut a worker's time into pieces; `columns` are its events, `activity` says what they mean."""
    first_ns, last_ns = int(task.window_bounds_ns[0]), int(task.window_bounds_ns[-1])
    spans = activity.read_thread_spans(columns).clip(first_ns, last_ns)
    unshown_flights = read_intervals(columns, activity.unshown_flight_rows).clip(first_ns, last_ns)
    thread_rows, device_rows = activity.flight_rows
    no_rows = thread_rows[:0]
    around = Surroundings(
        wait_intervals=task.wait_intervals,
        queue_intervals=task.queue_intervals,
        flight_intervals=read_intervals(columns, thread_rows, device_rows),
        stop_intervals=Intervals.concatenate(
            read_intervals(columns, no_rows, device_rows),
            find_unshown_waits(spans, unshown_flights, first_ns, last_ns),
        ),
        idle_cause_intervals=read_intervals(columns, *activity.idle_cause_rows),
        device_work=activity.read_device_work(columns),
    )
    return partition(spans, around, task.window_bounds_ns).without_gaps(task.gap_windows)


def _renumber_names(columns: Columns, shared_names: Sequence[str]) -> Int32s:
    """Return the index of each name of a file in `shared_names`, at last that of no name (-1)."""
    index_by_name = {name: index for index, name in enumerate(shared_names)}
    names = columns.word_column("name").vocabulary
    return np.array([*(index_by_name.get(name, NOTHING) for name in names), NOTHING], np.int32)


def _read_amounts(columns: Columns, cache: BoundedCache) -> dict[str, Amounts]:
    """Read how much work each step had, by the name of the counters that say so."""
    if "value" not in columns:
        return {}
    word_columns = [columns.word_column(name) for name in ("type", "kind", "name")]
    return cache.get_or_make(
        "amounts of work",
        [
            *(column.codes for column in word_columns),
            columns.number_column("step"),
            columns.value_columns["value"],
        ],
        partial(_sum_amounts, columns),
        *(column.vocabulary for column in word_columns),
    )


def _sum_amounts(columns: Columns) -> dict[str, Amounts]:
    """Return steps, and the sum in each, by the name of the amount, as a worker's counters tell."""
    names, values = columns.word_column("name"), columns.value_columns["value"]
    counter_rows = np.flatnonzero(columns.word_column("type").is_in(("counter",)))
    is_of_step = columns.word_column("kind").take(counter_rows).is_in(("step",))
    counter_rows = counter_rows[is_of_step & np.isfinite(values[counter_rows])]
    amounts_by_name = {}
    for name in AMOUNTS:
        rows = counter_rows[names.take(counter_rows).is_in((name,))]
        if len(rows):
            steps, step_index = np.unique(columns.number_column("step")[rows], return_inverse=True)
            amounts_by_name[name] = steps, np.bincount(step_index, values[rows])
    return amounts_by_name
