"""Input of the partition: spans of training threads and devices, and concurrent activity.

Around a training thread are the collectives that not all have entered, requests in servers' queues,
communication in flight, and recorded causes of idleness, from the records of the rank and its partners.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.categories import (
    BLOCKED,
    CATEGORIES,
    COMMUNICATION,
    COMPUTE_CATEGORIES,
    IDLE,
    PS_QUEUE,
    QUEUED,
    USER,
)
from tracelens.accounting.spans import Spans
from tracelens.distil.outline import find_work_times_ns
from tracelens.model.calls import NEVER
from tracelens.model.columns import NULL
from tracelens.model.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracelens.arrays import Array, Flags, Indices, Ints
    from tracelens.memory import BoundedCache
    from tracelens.model.calls import CallGrid
    from tracelens.model.columns import Columns, Words
    from tracelens.model.trace import Trace

# What a span of each kind means for its thread's time; steps mean nothing, they are the windows.
_MEANING: Final[dict[str, int]] = {
    **{kind: CATEGORIES.index(kind) for kind in COMPUTE_CATEGORIES},
    "device": IDLE,
    "reduction": COMMUNICATION,
    "ps": COMMUNICATION,
    "elastic": COMMUNICATION,
    "wait": BLOCKED,
}
# Elastic training's own work and its queue for a turn, whatever is in flight; idleness of known cause.
_MEANING_OF_OP: Final[dict[str, int]] = {
    "launch": IDLE,
    "turn_wait": PS_QUEUE,
    "worker_update": CATEGORIES.index("update"),
    "master_update": CATEGORIES.index("update"),
}
_OP_WITHOUT_WORK: Final = "launch"  # such a wait is for work, not for what is in flight
_PHASES_OF_TRAINING: Final = ("forward", "backprop", "update")
_CAUSES: Final = ("gc", "device", "checkpoint")
_IN_FLIGHT: Final = ("reduction", "ps", "elastic")
# What is read of a process for this.
ACTIVITY_COLUMNS: Final = (
    "start_ns",
    "end_ns",
    "type",
    "kind",
    "op",
    "name",
    "thread",
    "depth",
    "device_start_ns",
    "device_duration_ns",
)


@dataclass(frozen=True, eq=False)
class ThreadActivity:
    """Rows of the events that concern a worker's training thread, found by all columns but times.

    The first two fields also hold a code for the meaning of each span. Rows of flights (communication)
    and idle causes come in two arrays: spans on other threads, and spans on the device. No span of the
    training thread shows waits for the unshown flights. Updates and passes are those of the training
    thread, `forward_rows` those of any thread.
    """

    device_rows_and_codes: tuple[Indices, Array]
    thread_rows_and_codes: tuple[Indices, Array]
    flight_rows: tuple[Indices, Indices]
    idle_cause_rows: tuple[Indices, Indices]
    update_rows: Indices
    forward_rows: Indices
    pass_rows: Indices
    unshown_flight_rows: Indices

    def read_device_work(self, columns: Columns) -> Spans:
        """Read the rank's own work elsewhere: as its device timed it, or on the threads that compute.

        A device's work of a phase that nobody told (kind ``device``: a kernel) counts as the user's.
        """
        rows, codes = self.device_rows_and_codes
        return Spans(
            *find_work_times_ns(columns, rows), codes, columns.word_column("name").codes[rows]
        )

    def read_thread_spans(self, columns: Columns) -> Spans:
        """Read the training thread's spans; their names are indices of those of the file."""
        rows, codes = self.thread_rows_and_codes
        start_ns, end_ns = (
            columns.number_column(name).take(rows) for name in ("start_ns", "end_ns")
        )
        return Spans(
            start_ns,
            end_ns,
            meaning_codes=codes,
            name_codes=columns.word_column("name").codes.take(rows),
        )


def read_intervals(
    columns: Columns, rows: Indices, device_rows: Indices | None = None
) -> Intervals:
    """Read from when to when events (rows) lasted, ns; of `device_rows` the time on the device."""
    start_ns, end_ns = (columns.number_column(name).take(rows) for name in ("start_ns", "end_ns"))
    on_thread = Intervals(start_ns, end_ns)
    if device_rows is None or not len(device_rows):
        return on_thread
    return Intervals.concatenate(on_thread, Intervals(*find_work_times_ns(columns, device_rows)))


def find_activity(
    columns: Columns,
    training_thread: int | None,
    flight_tracks: tuple[int, ...],
    cache: BoundedCache,
) -> ThreadActivity:
    """Find a worker's activity; workers with equal columns share it (`cache`, of the pass over all).

    `columns` are its events, with `ACTIVITY_COLUMNS`; `flight_tracks` show operations in flight.
    """
    word_columns = [columns.word_column(name) for name in ("type", "kind", "op")]
    number_columns = [
        columns.number_column(name) for name in ("thread", "depth", "device_duration_ns")
    ]
    return cache.get_or_make(
        "thread activity",
        [*(column.codes for column in word_columns), *number_columns],
        lambda: _find_activity(columns, training_thread, flight_tracks),
        *(training_thread, flight_tracks, *(column.vocabulary for column in word_columns)),
    )


def _find_activity(
    columns: Columns, training: int | None, tracks: tuple[int, ...]
) -> ThreadActivity:
    """Find a worker's activity; all flags here are [event]."""
    is_span, kind, thread = (
        columns.is_span,
        columns.word_column("kind"),
        columns.number_column("thread"),
    )
    has_thread = training is not None
    on_training = is_span & has_thread & (thread == (-1 if training is None else training))
    off_training = is_span & has_thread & ~on_training
    off_tracks = off_training & ~np.isin(thread, tracks)
    is_timed = is_span & (columns.number_column("device_duration_ns") >= 0)
    # A reduction that a thread only queues: it is in flight on the device.
    is_reduced = is_timed & kind.is_in(("reduction",))
    on_device = is_timed & kind.is_in((*COMPUTE_CATEGORIES, "device"))
    directed = _find_directed_phases(kind, on_training, off_tracks)
    queued_phases = [phase for phase in directed if (on_device & kind.is_in((phase,))).any()]
    is_queueing = off_tracks & kind.is_in(queued_phases)
    is_computing = _find_work_on_threads(columns, on_training, off_tracks & ~is_queueing, directed)
    work_rows = np.flatnonzero(on_device | is_computing)
    work_rows = work_rows[np.argsort(columns.number_column("depth")[work_rows], kind="stable")]
    work_codes = kind.take(work_rows).translate(_MEANING | {"device": USER}, USER)
    span_rows = np.flatnonzero((on_training | is_queueing) & ~kind.is_in(("step",)) & ~is_reduced)
    is_cause = off_tracks & kind.is_in(_CAUSES)
    is_flight = off_training & kind.is_in(_IN_FLIGHT) & ~is_reduced
    is_unshown_flight = (
        is_flight & ~kind.is_in(("reduction",)) if _shows_waits(columns, on_training) else is_flight
    )
    activity = ThreadActivity(
        device_rows_and_codes=(work_rows, work_codes),
        thread_rows_and_codes=(span_rows, _list_meanings(columns, span_rows, work_codes)),
        flight_rows=(np.flatnonzero(is_flight), np.flatnonzero(is_reduced)),
        idle_cause_rows=(np.flatnonzero(is_cause), np.flatnonzero(is_timed)),
        update_rows=np.flatnonzero((on_training | is_computing) & kind.is_in(("update",))),
        forward_rows=np.flatnonzero(is_span & kind.is_in(("forward",))),
        pass_rows=np.flatnonzero(on_training & kind.is_in(("forward", "backprop"))),
        unshown_flight_rows=np.flatnonzero(is_unshown_flight),
    )
    for rows in (activity.update_rows, activity.forward_rows, activity.pass_rows):
        rows.setflags(write=False)
    return activity


def _shows_waits(columns: Columns, on_training: Flags) -> bool:
    """Return True if spans of the training thread show that it waits for reductions in flight."""
    kind = columns.word_column("kind")
    if not kind.codes_of(("wait",)):
        return False
    is_wait = on_training & kind.is_in(("wait",))
    return bool((is_wait & ~columns.word_column("op").is_in((_OP_WITHOUT_WORK,))).any())


def _find_directed_phases(kinds: Words, on_training: Flags, off_tracks: Flags) -> tuple[str, ...]:
    """Return the phases of training that are on other threads and never on the training thread.

    It only directs them. `kinds` and the flags are [event]; `off_tracks`: other threads, but for tracks
    of operations in flight.
    """
    return tuple(
        phase
        for phase in _PHASES_OF_TRAINING
        if (kinds.is_in((phase,)) & off_tracks).any()
        and not (kinds.is_in((phase,)) & on_training).any()
    )


def _find_work_on_threads(
    columns: Columns, on_training: Flags, off_tracks: Flags, directed_phases: tuple[str, ...]
) -> Flags:
    """Find the work on threads of their own, where the training thread only directs it, [event].

    That is all work on threads with directed phases. Without such phases it is the user's work on the
    thread with most spans of it, if these are more than the training thread has. `off_tracks` flags the
    events of other threads, but for tracks of operations in flight.
    """
    kind, thread = columns.word_column("kind"), columns.number_column("thread")
    if directed_phases:
        computing_threads = np.unique(thread[kind.is_in(directed_phases) & off_tracks])
        return np.asarray(
            off_tracks & kind.is_in((*directed_phases, "user")) & np.isin(thread, computing_threads)
        )
    is_user, is_training = kind.is_in(("user",)), kind.is_in(_PHASES_OF_TRAINING)
    span_count_by_thread = np.bincount(thread[is_user & off_tracks])
    has_fewer = span_count_by_thread.max(initial=0) <= np.count_nonzero(is_user & on_training)
    if has_fewer or (is_training & on_training).any():
        return np.zeros(columns.row_count, np.bool_)
    return np.asarray(off_tracks & is_user & (thread == span_count_by_thread.argmax()))


def _list_meanings(columns: Columns, rows: Indices, work_codes: Array) -> Array:
    """List meanings of the training thread's spans (rows), [row]; `work_codes` are those of devices."""
    codes = columns.word_column("kind").take(rows).translate(_MEANING, USER)
    codes_of_ops = columns.word_column("op").take(rows).translate(_MEANING_OF_OP, NULL)
    codes = np.where(codes_of_ops == NULL, codes, codes_of_ops)
    if len(work_codes):  # spans that only give the device such work, or await it
        codes = np.where(np.isin(codes, [*np.unique(work_codes), IDLE]), codes + QUEUED, codes)
    return codes


def find_waits(trace: Trace, processes: list[int]) -> Iterator[Intervals]:
    """Yield when each process was blocked by others: in collectives, and in messages.

    `processes` are ascending, as are those of `trace.message_waits`, a row per wait in a message.
    """
    process, start_ns, end_ns = (
        trace.message_waits[name].to_numpy() for name in ("process", "start_ns", "end_ns")
    )
    row_ranges = np.searchsorted(process, processes), np.searchsorted(process, processes, "right")
    all_waits = _find_collective_waits(trace.calls, processes)
    for waits, first_row, stop_row in zip(all_waits, *row_ranges, strict=True):
        in_messages = Intervals(start_ns[first_row:stop_row], end_ns[first_row:stop_row])
        yield waits if first_row == stop_row else Intervals.concatenate(waits, in_messages)


def _find_collective_waits(
    calls: Iterable[CallGrid], processes: Iterable[int]
) -> Iterator[Intervals]:
    """Yield when each process was blocked in collectives that not all had entered.

    `processes` are in order, as those of each communicator are.
    """
    by_process = merge(*map(_find_waits_of_grid, calls), key=itemgetter(0))
    after_last = (sys.maxsize, Intervals.empty())
    next_process, next_waits = next(by_process, after_last)
    for process in processes:
        waits = [Intervals.empty()]  # of this process, one for each of its communicators
        while next_process <= process:
            if next_process == process:
                waits.append(next_waits)
            next_process, next_waits = next(by_process, after_last)
        yield Intervals.concatenate(*waits)


def _find_waits_of_grid(grid: CallGrid) -> Iterator[tuple[int, Intervals]]:
    """Yield each process of a communicator, with the times at which it waited in the calls.

    Where ranks make different operations, they wait until the call's end for what never comes.
    """
    is_known = grid.last_arrival_ns != NEVER
    is_missing = ~is_known & ((grid.last_rank_of_call != NULL) | grid.follows_mismatch)
    for column, (start_ns, wait_ns) in enumerate(grid.waits_by_process()):
        wait_end_ns = start_ns + wait_ns
        wait_end_ns[is_missing] = grid.end_ns[is_missing, column]
        is_wait = (is_known | is_missing) & (start_ns != NEVER)
        yield int(grid.processes[column]), Intervals(start_ns[is_wait], wait_end_ns[is_wait])


def list_training_threads(trace: Trace) -> Ints:
    """Return each process's training thread, [process]; -1 without one."""
    processes = trace.processes.select("process", "training_thread")
    threads = np.full(int(trace.processes["process"].max() or 0) + 1, -1, np.int64)  # type: ignore[arg-type]  # a column of numbers
    threads[processes["process"].to_numpy()] = processes["training_thread"].fill_null(-1).to_numpy()
    return threads
