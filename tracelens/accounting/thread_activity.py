"""Input of the partition: spans of training threads and devices, and concurrent activity.

Around a training thread are the collectives that not all have entered, requests in servers' queues,
communication in flight, and recorded causes of idleness, from the records of the rank and its partners.
"""

from __future__ import annotations

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
from tracelens.distil.outline import work_times
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
    """Which events of a worker concern its training thread, by all columns but times: rows of them.

    `device_work` and `thread_spans` come with what each means. `flights` and `idle_causes` are spans
    beside the training thread, also on the device; no span of the thread shows waits for the
    `unshown_flights`. Updates and passes are those of the training thread, `forward` of any thread.
    """

    device_work: tuple[Indices, Array]
    thread_spans: tuple[Indices, Array]
    flights: tuple[Indices, Indices]
    idle_causes: tuple[Indices, Indices]
    updates: Indices
    forward: Indices
    passes: Indices
    unshown_flights: Indices

    def read_device_work(self, columns: Columns) -> Spans:
        """Read the rank's own work elsewhere: as its device timed it, or on the threads that compute.

        A device's work of a phase that nobody told (kind ``device``: a kernel) counts as the user's.
        """
        rows, code = self.device_work
        return Spans(*work_times(columns, rows), code, columns.word_column("name").codes[rows])

    def read_thread_spans(self, columns: Columns) -> Spans:
        """Read the training thread's spans; `code` is their meaning, `name` that of their file."""
        rows, code = self.thread_spans
        start, end = (columns.number(name).take(rows) for name in ("start_ns", "end_ns"))
        return Spans(start, end, code, columns.word_column("name").codes.take(rows))


def read_intervals(
    columns: Columns, rows: Indices, device_rows: Indices | None = None
) -> Intervals:
    """Read when events lasted, and others on the device."""
    start, end = (columns.number(name).take(rows) for name in ("start_ns", "end_ns"))
    on_thread = Intervals(start, end)
    if device_rows is None or not len(device_rows):
        return on_thread
    return Intervals.concatenate(on_thread, Intervals(*work_times(columns, device_rows)))


def find_activity(
    columns: Columns, training: int | None, tracks: tuple[int, ...], cache: BoundedCache
) -> ThreadActivity:
    """Look for a worker's activity; the same columns as of another one have the same.

    Args:
        columns: Its events, with `ACTIVITY_COLUMNS`.
        training: Its training thread; None = it has none.
        tracks: Its tracks of operations in flight.
        cache: Of the pass over all workers.
    """
    key_words = [columns.word_column(name) for name in ("type", "kind", "op")]
    numbers = [columns.number(name) for name in ("thread", "depth", "device_duration_ns")]
    return cache.get_or_make(
        "thread activity",
        [*(word.codes for word in key_words), *numbers],
        lambda: _find_activity(columns, training, tracks),
        *(training, tracks, *(word.known for word in key_words)),
    )


def _find_activity(
    columns: Columns, training: int | None, tracks: tuple[int, ...]
) -> ThreadActivity:
    is_span, kind, thread = columns.is_span, columns.word_column("kind"), columns.number("thread")
    has_thread = training is not None
    on_training = is_span & has_thread & (thread == (-1 if training is None else training))
    off_training = is_span & has_thread & ~on_training
    off_tracks = off_training & ~np.isin(thread, tracks)
    is_timed = is_span & (columns.number("device_duration_ns") >= 0)
    # A reduction that a thread only queues: it is in flight on the device.
    reduced = is_timed & kind.is_in(("reduction",))
    on_device = is_timed & kind.is_in((*COMPUTE_CATEGORIES, "device"))
    directed = _find_directed_phases(kind, on_training, off_tracks)
    queued_phases = [phase for phase in directed if (on_device & kind.is_in((phase,))).any()]
    queueing = off_tracks & kind.is_in(queued_phases)
    computing = _on_computing_threads(columns, on_training, off_tracks & ~queueing, directed)
    work = np.flatnonzero(on_device | computing)
    work = work[np.argsort(columns.number("depth")[work], kind="stable")]
    work_code = kind.take(work).translated(_MEANING | {"device": USER}, USER)
    spans = np.flatnonzero((on_training | queueing) & ~kind.is_in(("step",)) & ~reduced)
    flies = off_training & kind.is_in(_IN_FLIGHT) & ~reduced
    unshown = flies & ~kind.is_in(("reduction",)) if _shows_waits(columns, on_training) else flies
    activity = ThreadActivity(
        device_work=(work, work_code),
        thread_spans=(spans, _to_codes(columns, spans, work_code)),
        flights=(np.flatnonzero(flies), np.flatnonzero(reduced)),
        idle_causes=(np.flatnonzero(off_tracks & kind.is_in(_CAUSES)), np.flatnonzero(is_timed)),
        updates=np.flatnonzero((on_training | computing) & kind.is_in(("update",))),
        forward=np.flatnonzero(is_span & kind.is_in(("forward",))),
        passes=np.flatnonzero(on_training & kind.is_in(("forward", "backprop"))),
        unshown_flights=np.flatnonzero(unshown),
    )
    for rows in (activity.updates, activity.forward, activity.passes):
        rows.setflags(write=False)
    return activity


def _shows_waits(columns: Columns, on_training: Flags) -> bool:
    """Return True if spans of the training thread show that it waits for reductions in flight."""
    kind = columns.word_column("kind")
    if not kind.codes_of(("wait",)):
        return False
    is_wait = on_training & kind.is_in(("wait",))
    return bool((is_wait & ~columns.word_column("op").is_in((_OP_WITHOUT_WORK,))).any())


def _find_directed_phases(kind: Words, on_training: Flags, off_tracks: Flags) -> tuple[str, ...]:
    """Return the phases of training that other threads have, and the training thread has not itself.

    It only directs them. Where a device computes such a phase, these threads only queue it.
    """
    return tuple(
        phase
        for phase in _PHASES_OF_TRAINING
        if (kind.is_in((phase,)) & off_tracks).any()
        and not (kind.is_in((phase,)) & on_training).any()
    )


def _on_computing_threads(
    columns: Columns, on_training: Flags, off_tracks: Flags, directed: tuple[str, ...]
) -> Flags:
    """Find the work on threads of their own, where the training thread only directs it, [event].

    That are the phases that it directs, with what else is done there. If no thread has such phases, it
    is the thread with most other work, if that is more than the training thread has.
    """
    kind, thread = columns.word_column("kind"), columns.number("thread")
    if directed:
        computing = np.unique(thread[kind.is_in(directed) & off_tracks])
        return np.asarray(off_tracks & kind.is_in((*directed, "user")) & np.isin(thread, computing))
    is_user, trains = kind.is_in(("user",)), kind.is_in(_PHASES_OF_TRAINING)
    count = np.bincount(thread[is_user & off_tracks])
    if (trains & on_training).any() or count.max(initial=0) <= np.count_nonzero(
        is_user & on_training
    ):
        return np.zeros(columns.height, np.bool_)
    return np.asarray(off_tracks & is_user & (thread == count.argmax()))


def _to_codes(columns: Columns, rows: Indices, work_code: Array) -> Array:
    """Return the code of each span of the training thread; `work_code` is what a device worked on."""
    code = columns.word_column("kind").take(rows).translated(_MEANING, USER)
    of_op = columns.word_column("op").take(rows).translated(_MEANING_OF_OP, NULL)
    code = np.where(of_op == NULL, code, of_op)
    if len(work_code):  # spans that only give the device such work, or await it
        code = np.where(np.isin(code, [*np.unique(work_code), IDLE]), code + QUEUED, code)
    return code


def find_waits(trace: Trace, processes: list[int]) -> Iterator[Intervals]:
    """Yield when each process was blocked by others: in collectives, and in messages."""
    process, start, end = (
        trace.awaited[name].to_numpy() for name in ("process", "start_ns", "end_ns")
    )
    edges = np.searchsorted(process, processes), np.searchsorted(process, processes, "right")
    by_process = _find_collective_waits(trace.calls, processes)
    for wait, first, stop in zip(by_process, *edges, strict=True):
        in_messages = Intervals(start[first:stop], end[first:stop])
        yield wait if first == stop else Intervals.concatenate(wait, in_messages)


def _find_collective_waits(
    calls: Iterable[CallGrid], processes: Iterable[int]
) -> Iterator[Intervals]:
    """Yield when each process was blocked in collectives that not all had entered.

    `processes` are in order, as those of each communicator are.
    """
    by_process = merge(*map(_find_waits_of_grid, calls), key=itemgetter(0))
    upcoming = next(by_process, None)
    for process in processes:
        waits = [Intervals.empty()]
        while upcoming is not None and upcoming[0] <= process:
            if upcoming[0] == process:
                waits.append(upcoming[1])
            upcoming = next(by_process, None)
        yield Intervals.concatenate(*waits)


def _find_waits_of_grid(grid: CallGrid) -> Iterator[tuple[int, Intervals]]:
    """Yield the waits of each process in the calls of one communicator.

    Where ranks make different operations nothing is transferred: they wait for what never comes.
    """
    is_known = grid.last_ns != NEVER
    is_missing = ~is_known & ((grid.last_rank != NULL) | grid.follows_mismatch)
    for column, (start_ns, wait_ns) in enumerate(grid.waits_by_process()):
        wait_end_ns = start_ns + wait_ns
        wait_end_ns[is_missing] = grid.end_ns[is_missing, column]
        waits = (is_known | is_missing) & (start_ns != NEVER)
        yield int(grid.processes[column]), Intervals(start_ns[waits], wait_end_ns[waits])


def training_threads(trace: Trace) -> Ints:
    """Return each process's training thread, [process]; -1 without one."""
    known = trace.processes.select("process", "training_thread")
    threads = np.full(int(trace.processes["process"].max() or 0) + 1, -1, np.int64)  # type: ignore[arg-type]  # a column of numbers
    threads[known["process"].to_numpy()] = known["training_thread"].fill_null(-1).to_numpy()
    return threads
