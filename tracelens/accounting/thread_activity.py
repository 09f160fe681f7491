"""Input of the partition: spans of training threads and devices, and concurrent activity.

Around a training thread are the collectives that not all have entered, requests in servers' queues,
communication in flight, and recorded causes of idleness, from the records of the rank and its partners.
"""

from __future__ import annotations

from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

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
from tracelens.model.calls import NEVER
from tracelens.model.columns import FOREVER, NULL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracelens.arrays import Array, Flags, Indices, Ints
    from tracelens.model.calls import CallGrid
    from tracelens.model.columns import Columns
    from tracelens.model.trace import Trace

__all__ = [
    "ACTIVITY_COLUMNS",
    "ThreadActivity",
    "collective_waits",
    "server_queues",
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
_CAUSES: Final = ("gc", "device", "checkpoint")
_IN_FLIGHT: Final = ("reduction", "ps", "elastic")
_SERVICE: Final = ("aggregate", "apply", "reply")
_QUEUE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
}
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
    """

    def __init__(self, columns: Columns, training: int | None, tracks: Iterable[int]) -> None:
        self._columns = columns
        self._is_span = columns.is_span
        self._kind = columns.word("kind")
        thread = columns.number("thread")
        known = np.full(columns.height, training is not None)
        self.on_training = (
            self._is_span & known & (thread == (-1 if training is None else training))
        )
        self._beside = self._is_span & known & ~self.on_training
        self._flies = np.isin(thread, list(tracks))
        timed = "device_duration_ns" in columns
        lasted = columns.number("device_duration_ns")
        self._timed = self._is_span & (lasted >= 0) if timed else np.zeros(columns.height, np.bool_)
        reduction = self._kind.among(("reduction",))
        # A reduction that a thread only queues: it is in flight on the device.
        self._reduced_on_device = self._timed & reduction

    def device_spans(self) -> Spans:
        """Return the rank's own work as its device timed it.

        A device's work of a phase that nobody told (kind ``device``: a kernel) counts as the user's.
        """
        if not np.any(self._timed):
            return self._spans(np.zeros(0, np.intp), _NO_CODES)
        rows = np.flatnonzero(self._timed & self._kind.among((*COMPUTE_CATEGORIES, "device")))
        rows = rows[np.argsort(self._columns.number("depth")[rows], kind="stable")]
        start, end = self._on_device(rows)
        code = self._kind.taken(rows).translated(_MEANING | {"device": USER}, USER)
        return Spans(start, end, code, self._columns.word("name").codes[rows])

    def thread_spans(self, device: Spans) -> Spans:
        """Return the training thread's spans; `code` is their meaning, `name` that of their file."""
        chosen = self.on_training & ~self._kind.among(("step",)) & ~self._reduced_on_device
        rows = np.flatnonzero(chosen)
        code = self._kind.taken(rows).translated(_MEANING, USER)
        of_op = self._columns.word("op").taken(rows).translated(_MEANING_OF_OP, NULL)
        code = np.where(of_op == NULL, code, of_op)
        if len(device.start):  # spans that only give the device such work, or await it
            code = np.where(np.isin(code, [*np.unique(device.code), IDLE]), code + QUEUED, code)
        return self._spans(rows, code)

    def in_flight(self) -> Intervals:
        """Return the communication in flight concurrently with the training thread."""
        beside = self._beside & self._kind.among(_IN_FLIGHT) & ~self._reduced_on_device
        return self._intervals(np.flatnonzero(beside), self._reduced_on_device)

    def idle_causes(self) -> Intervals:
        """Return other recorded causes of idle time: pauses, device work."""
        beside = self._beside & self._kind.among(_CAUSES) & ~self._flies
        return self._intervals(np.flatnonzero(beside), self._timed)

    def rows_of(self, kind: str, *, anywhere: bool = False) -> Indices:
        """Return the rows of the spans of a kind, on the training thread or anywhere."""
        spans = self._is_span if anywhere else self.on_training
        return np.flatnonzero(spans & self._kind.among((kind,)))

    def _spans(self, rows: Indices, code: Array) -> Spans:
        start, end = (self._columns.number(name)[rows] for name in ("start_ns", "end_ns"))
        return Spans(start, end, code, self._columns.word("name").codes[rows])

    def _intervals(self, rows: Indices, on_device: Flags) -> Intervals:
        start, end = (self._columns.number(name)[rows] for name in ("start_ns", "end_ns"))
        if not np.any(on_device):
            return Intervals(start, end)
        begun, over = self._on_device(np.flatnonzero(on_device))
        return Intervals(np.concatenate([start, begun]), np.concatenate([end, over]))

    def _on_device(self, rows: Indices) -> tuple[Ints, Ints]:
        start = self._columns.number("device_start_ns")[rows]
        return start, start + self._columns.number("device_duration_ns")[rows]


_NO_CODES: Final = np.zeros(0, np.int32)


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
    """Yield the waits of each process in the calls of one communicator."""
    known = grid.last_ns != NEVER
    missing = ~known & (grid.last_rank != NULL)
    for column, (start, wait) in enumerate(grid.waits_by_process()):
        until = start + wait
        until[missing] = grid.end_ns[missing, column]
        there = (known | missing) & (start != NEVER)
        yield int(grid.processes[column]), Intervals(start[there], until[there])


def server_queues(trace: Trace) -> pl.DataFrame:
    """Return when a request of each worker was with a shard that had not begun to serve it."""
    if trace.shards.is_empty() or trace.alignment.unaligned:
        return pl.DataFrame(schema=_QUEUE_COLUMNS)
    requests = trace.requests.lazy().filter(
        (pl.col("kind") == "ps") & pl.col("request").is_not_null()
    )
    shards, workers = (
        requests.join(part.select("process").lazy(), on="process", how="semi")
        for part in (trace.shards, trace.workers)
    )
    begun = pl.col("start_ns").filter(pl.col("op").is_in(_SERVICE)).min()
    served = shards.group_by("request").agg(
        received=pl.col("end_ns").filter(pl.col("op") == "receive").min(), begun=begun
    )
    end = pl.col("end_ns").fill_null(FOREVER)
    # A pull carries nothing until its reply: before that it is in the queue, also unseen by a shard
    # that is too busy to take it in.
    asking = pl.col("op") == "pull"
    start = pl.when(asking).then("start_ns").otherwise(pl.max_horizontal("start_ns", "received"))
    return (
        workers.filter(pl.col("op").is_in(["push", "pull"]))
        .join(served.filter(pl.col("received").is_not_null()), on="request")
        .select("process", start_ns=start, end_ns=pl.min_horizontal(end, "begun"))
        .filter(pl.col("start_ns") < pl.col("end_ns"))
        .collect()
    )


def training_threads(trace: Trace) -> Ints:
    """Return each process's training thread, by process."""
    known = trace.processes.select("process", "training_thread")
    threads = np.full(int(trace.processes["process"].max() or 0) + 1, -1, np.int64)  # type: ignore[arg-type]  # a column of numbers
    threads[known["process"].to_numpy()] = known["training_thread"].fill_null(-1).to_numpy()
    return threads
