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
from tracelens.accounting.partition import Intervals, Spans
from tracelens.distil.outline import work_times
from tracelens.model.calls import NEVER
from tracelens.model.columns import NULL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracelens.arrays import Array, Flags, Indices, Ints
    from tracelens.memory import BoundedCache
    from tracelens.model.calls import CallGrid
    from tracelens.model.columns import Columns, Words
    from tracelens.model.trace import Trace

__all__ = [
    "ACTIVITY_COLUMNS",
    "ThreadActivity",
    "all_waits",
    "collective_waits",
    "shows_waits",
    "training_threads",
]

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
_GIVEN_NOTHING: Final = "launch"  # such a wait is for work, not for what is in flight
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


class ThreadActivity:
    """What one worker's process recorded of its training thread, and beside it.

    Args:
        columns: Its events, with `ACTIVITY_COLUMNS`.
        training: Its training thread; None = it has none.
        tracks: Its tracks of operations in flight.
        cache: Of the pass over all workers.
    """

    def __init__(
        self,
        columns: Columns,
        training: int | None,
        tracks: Iterable[int],
        cache: BoundedCache,
    ) -> None:
        self._columns = columns
        words = [columns.word(name) for name in ("type", "kind", "op")]
        numbers = [columns.number(name) for name in ("thread", "depth", "device_duration_ns")]
        threads = training, tuple(tracks)
        self._rows = cache.get_or_make(
            "thread activity",
            [*(word.codes for word in words), *numbers],
            lambda: _looked_up(columns, *threads),
            *(*threads, *(word.known for word in words)),
        )

    @property
    def device_spans(self) -> Spans:
        """The rank's own work elsewhere: as its device timed it, or on the threads that compute.

        A device's work of a phase that nobody told (kind ``device``: a kernel) counts as the user's.
        """
        rows, code = self._rows.on_device
        return Spans(*self._on_device(rows), code, self._columns.word("name").codes[rows])

    @property
    def thread_spans(self) -> Spans:
        """The training thread's spans; `code` is their meaning, `name` that of their file."""
        rows, code = self._rows.on_thread
        start, end = (self._columns.number(name).take(rows) for name in ("start_ns", "end_ns"))
        return Spans(start, end, code, self._columns.word("name").codes.take(rows))

    @property
    def in_flight(self) -> Intervals:
        """The communication in flight concurrently with the training thread."""
        return self._intervals(*self._rows.flying)

    @property
    def idle_causes(self) -> Intervals:
        """Other recorded causes of idle time: pauses, device work."""
        return self._intervals(*self._rows.causes)

    @property
    def flights_on_device(self) -> Intervals:
        """The communication that a device does, which does nothing after it meanwhile."""
        return self._intervals(self._rows.flying[0][:0], self._rows.flying[1])

    @property
    def unshown_flights(self) -> Intervals:
        """The other communication in flight, as far as no span shows the waiting for it."""
        return self._intervals(self._rows.unshown, self._rows.unshown[:0])

    @property
    def updates(self) -> Indices:
        """The rows of updates on the training thread."""
        return self._rows.updates

    @property
    def forward(self) -> Indices:
        """The rows of forward passes on any thread."""
        return self._rows.forward

    @property
    def passes(self) -> Indices:
        """The rows of forward and backprop on the training thread."""
        return self._rows.passes

    def _intervals(self, rows: Indices, on_device: Indices) -> Intervals:
        start, end = (self._columns.number(name).take(rows) for name in ("start_ns", "end_ns"))
        if not len(on_device):
            return Intervals(start, end)
        begun, over = self._on_device(on_device)
        return Intervals(np.concatenate([start, begun]), np.concatenate([end, over]))

    def _on_device(self, rows: Indices) -> tuple[Ints, Ints]:
        return work_times(self._columns, rows)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Which events of a worker are what, by all columns but times; spans with what each means.

    `flying` and `causes` are rows of spans beside the training thread, and of such on the device;
    `unshown` are those of `flying` for which no span of the thread shows that it waits.
    """

    on_device: tuple[Indices, Array]
    on_thread: tuple[Indices, Array]
    flying: tuple[Indices, Indices]
    causes: tuple[Indices, Indices]
    updates: Indices
    forward: Indices
    passes: Indices
    unshown: Indices


def _looked_up(columns: Columns, training: int | None, tracks: tuple[int, ...]) -> _Rows:
    """Look for the rows of a worker; the same columns as of another one have the same."""
    is_span, kind, thread = columns.is_span, columns.word("kind"), columns.number("thread")
    known = training is not None
    on_training = is_span & known & (thread == (-1 if training is None else training))
    beside = is_span & known & ~on_training
    timed = is_span & (columns.number("device_duration_ns") >= 0)
    # A reduction that a thread only queues: it is in flight on the device.
    reduced = timed & kind.among(("reduction",))
    on_device = timed & kind.among((*COMPUTE_CATEGORIES, "device"))
    others = beside & ~np.isin(thread, tracks)
    directed = _directed(kind, on_training, others)
    queueing = others & kind.among(
        name for name in directed if (on_device & kind.among((name,))).any()
    )
    computing = _on_computing_threads(columns, on_training, others & ~queueing, directed)
    works = np.flatnonzero(on_device | computing)
    works = works[np.argsort(columns.number("depth")[works], kind="stable")]
    work = kind.taken(works).translated(_MEANING | {"device": USER}, USER)
    spans = np.flatnonzero((on_training | queueing) & ~kind.among(("step",)) & ~reduced)
    causes = beside & kind.among(_CAUSES) & ~np.isin(thread, tracks)
    flies = beside & kind.among(_IN_FLIGHT) & ~reduced
    unshown = flies & ~kind.among(("reduction",)) if shows_waits(columns, training) else flies
    found = _Rows(
        on_device=(works, work),
        on_thread=(spans, _meaning(columns, spans, work)),
        flying=(
            np.flatnonzero(flies),
            np.flatnonzero(reduced),
        ),
        causes=(np.flatnonzero(causes), np.flatnonzero(timed)),
        updates=np.flatnonzero((on_training | computing) & kind.among(("update",))),
        forward=np.flatnonzero(is_span & kind.among(("forward",))),
        passes=np.flatnonzero(on_training & kind.among(("forward", "backprop"))),
        unshown=np.flatnonzero(unshown),
    )
    for rows in (found.updates, found.forward, found.passes):
        rows.setflags(write=False)
    return found


def shows_waits(columns: Columns, training: int | None) -> bool:
    """Return whether spans of the training thread show that it waits for reductions in flight."""
    kind = columns.word("kind")
    if training is None or not kind.codes_of(("wait",)):
        return False
    is_wait = columns.is_span & kind.among(("wait",)) & (columns.number("thread") == training)
    return bool((is_wait & ~columns.word("op").among((_GIVEN_NOTHING,))).any())


def _directed(kind: Words, on_training: Flags, others: Flags) -> tuple[str, ...]:
    """Return the phases of training that other threads have, and the training thread has not itself.

    It only directs them. Where a device computes such a phase, these threads only queue it.
    """

    def has(name: str, which: Flags) -> bool:
        return bool((kind.among((name,)) & which).any())

    return tuple(
        name for name in _PHASES_OF_TRAINING if has(name, others) and not has(name, on_training)
    )


def _on_computing_threads(
    columns: Columns, on_training: Flags, others: Flags, directed: tuple[str, ...]
) -> Flags:
    """Return the work on threads of their own, where the training thread only directs it.

    That are the phases that it directs, with what else is done there. If no thread has such phases, it
    is the thread with most other work, if that is more than the training thread has.
    """
    kind, thread = columns.word("kind"), columns.number("thread")
    if directed:
        there = np.unique(thread[kind.among(directed) & others])
        return np.asarray(others & kind.among((*directed, "user")) & np.isin(thread, there))
    other, trains = kind.among(("user",)), kind.among(_PHASES_OF_TRAINING)
    count = np.bincount(thread[other & others])
    if (trains & on_training).any() or not len(count):
        return np.zeros(columns.height, np.bool_)
    if count.max() <= np.count_nonzero(other & on_training):
        return np.zeros(columns.height, np.bool_)
    return np.asarray(others & other & (thread == count.argmax()))


def _meaning(columns: Columns, rows: Indices, work: Array) -> Array:
    """Return what each span of the training thread means; `work` is what the device worked on."""
    code = columns.word("kind").taken(rows).translated(_MEANING, USER)
    of_op = columns.word("op").taken(rows).translated(_MEANING_OF_OP, NULL)
    code = np.where(of_op == NULL, code, of_op)
    if len(work):  # spans that only give the device such work, or await it
        code = np.where(np.isin(code, [*np.unique(work), IDLE]), code + QUEUED, code)
    return code


def all_waits(trace: Trace, processes: list[int]) -> Iterator[Intervals]:
    """Yield when each process was blocked by others: in collectives, and in messages."""
    process, start, end = (
        trace.awaited[name].to_numpy() for name in ("process", "start_ns", "end_ns")
    )
    edges = np.searchsorted(process, processes), np.searchsorted(process, processes, "right")
    for wait, first, after in zip(collective_waits(trace.calls, processes), *edges, strict=True):
        if first == after:
            yield wait
            continue
        begins = np.concatenate([wait.start, start[first:after]])
        yield Intervals(begins, np.concatenate([wait.end, end[first:after]]))


def collective_waits(calls: Iterable[CallGrid], processes: Iterable[int]) -> Iterator[Intervals]:
    """Yield when each process was blocked in collectives that not all had entered.

    `processes` are in order, as those of each communicator are.
    """
    found = merge(*map(_waits, calls), key=itemgetter(0))
    ahead = next(found, None)
    for process in processes:
        starts, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        while ahead is not None and ahead[0] <= process:
            if ahead[0] == process:
                starts.append(ahead[1].start)
                ends.append(ahead[1].end)
            ahead = next(found, None)
        yield Intervals(np.concatenate(starts), np.concatenate(ends))


def _waits(grid: CallGrid) -> Iterator[tuple[int, Intervals]]:
    """Yield the waits of each process in the calls of one communicator.

    Where ranks make different operations nothing is transferred: they wait for what never comes.
    """
    known = grid.last_ns != NEVER
    missing = ~known & ((grid.last_rank != NULL) | grid.follows_mismatch)
    for column, (start, wait) in enumerate(grid.waits_by_process()):
        until = start + wait
        until[missing] = grid.end_ns[missing, column]
        there = (known | missing) & (start != NEVER)
        yield int(grid.processes[column]), Intervals(start[there], until[there])


def training_threads(trace: Trace) -> Ints:
    """Return each process's training thread, by process."""
    known = trace.processes.select("process", "training_thread")
    threads = np.full(int(trace.processes["process"].max() or 0) + 1, -1, np.int64)  # type: ignore[arg-type]  # a column of numbers
    threads[known["process"].to_numpy()] = known["training_thread"].fill_null(-1).to_numpy()
    return threads
