"""The first pass over one process: its steps, its calls, and what little else all ranks must know.

Clocks are tied, steps are divided and calls are matched by outlines alone, so that no more of a run than
those is held at once. Times are those of the process's own clock, steps as they were recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.model.columns import FOREVER, NULL
from tracelens.model.outline import CallRows, Counters, Outline, StepSpans
from tracelens.schema.vocabulary import COLLECTIVES, EXCHANGE_KINDS, POINT_TO_POINT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracelens.arrays import Array, Flags, Indices, Int32s, Ints
    from tracelens.model.columns import Columns
    from tracelens.model.trace import Trace

__all__ = ["KEPT", "OUTLINED", "outline", "outlined", "work_times"]

# The columns that an outline is made of; others need not be read for it.
OUTLINED: Final = (
    "start_ns",
    "end_ns",
    "type",
    "kind",
    "op",
    "name",
    "status",
    "thread",
    "depth",
    "step",
    "communicator",
    "seq",
    "bytes",
    "bucket",
    "peer",
    "device_start_ns",
    "device_duration_ns",
    "stream",
    "value",
)
_OF_CALLS: Final = ("communicator", "seq", "bytes", "peer")
# Of these, what is asked for again when outlines have been merged.
KEPT: Final = tuple(name for name in OUTLINED if name not in _OF_CALLS)


def outlined(trace: Trace) -> Mapping[int, Outline]:
    """Return the outline of each process; those that a reader made serve, as long as they hold."""
    if trace.outlines is not None:
        return trace.outlines
    tracks = in_flight_tracks(trace)
    source = trace.source
    return {
        process: outline(source.columns(process, OUTLINED), tracks.get(process, ()))
        for process in source.parts
    }


def in_flight_tracks(trace: Trace) -> dict[int, list[int]]:
    """Return the tracks of each process on which operations run beside the code."""
    found: dict[int, list[int]] = {}
    for process, thread in trace.threads.filter("in_flight").select("process", "thread").rows():
        found.setdefault(process, []).append(thread)
    return found


def outline(columns: Columns, in_flight: Iterable[int] = ()) -> Outline:
    """Make the outline of one process.

    Args:
        columns: Its events, in order of begin, with the columns of `OUTLINED`.
        in_flight: Its tracks of operations that run beside the code.
    """
    is_span, kind = columns.is_span, columns.word("kind")
    start, end = columns.number("start_ns"), columns.number("end_ns")
    thread = columns.number("thread")
    of_step = kind.among(("step",))
    training = _training_thread(thread[is_span], of_step[is_span], in_flight)
    on_training = thread == training if training is not None else np.zeros(columns.height, np.bool_)
    reductions = np.flatnonzero(kind.among(("reduction",)) & is_span)
    last = np.maximum(start, np.where(end == FOREVER, start, end))
    collective = _with_op(columns, reductions, COLLECTIVES)
    numbered = (columns.number("communicator")[collective] >= 0) & (
        columns.number("seq")[collective] >= 0
    )
    return Outline(
        rows=columns.height,
        spans=int(np.count_nonzero(is_span)),
        first_ns=int(start[0]) if len(start) else None,
        last_ns=int(last.max()) if len(start) else None,
        of_steps=int(np.count_nonzero(of_step)),
        training_thread=training,
        training_last_ns=int(last[on_training].max(initial=NULL)),
        steps=_step_spans(columns, np.flatnonzero(of_step & is_span), on_training),
        implied=_implied(columns, np.flatnonzero(on_training & is_span), of_step),
        calls=_calls(columns, collective[numbered]),
        requests=int(np.count_nonzero(kind.among(EXCHANGE_KINDS) & is_span)),
        messages=len(_with_op(columns, reductions, POINT_TO_POINT)),
        opened=int(np.count_nonzero(columns.word("status").among(("open",)) & is_span)),
        counters=_counters(columns),
        names=columns.word("name").known,
        numberless=int(len(collective) - np.count_nonzero(numbered)),
    )


def _training_thread(thread: Array, of_step: Flags, in_flight: Iterable[int]) -> int | None:
    """Return the thread with the most steps, else the busiest, of several the first."""
    if not len(thread):
        return None
    count = np.bincount(thread)
    steps = np.bincount(thread[of_step], minlength=len(count))
    count[[track for track in in_flight if track < len(count)]] = 0
    there = np.flatnonzero(count)
    if not len(there):
        return None
    return int(there[np.lexsort((there, -count[there], -steps[there]))[0]])


def _with_op(columns: Columns, rows: Indices, ops: tuple[str, ...]) -> Indices:
    return rows[columns.word("op").taken(rows).among(ops)]


def _step_spans(columns: Columns, rows: Indices, on_training: Flags) -> StepSpans:
    step, start, end, depth = (
        columns.number(name)[rows] for name in ("step", "start_ns", "end_ns", "depth")
    )
    return StepSpans(step, start, end, depth, on_training[rows])


def _implied(columns: Columns, rows: Indices, of_step: Flags) -> tuple[Int32s, Ints]:
    """Return the first begin of each step number on the training thread; before all, that is step 0.

    Nothing where there are step spans.
    """
    rows = rows[:0] if of_step[rows].any() else rows
    step, first = np.unique(np.maximum(columns.number("step")[rows], 0), return_index=True)
    return step.astype(np.int32), columns.number("start_ns")[rows][first]


def _calls(columns: Columns, rows: Indices) -> CallRows:
    start, end = work_times(columns, rows)
    op, status = columns.word("op"), columns.word("status")

    def of(name: str) -> Array:
        return np.ascontiguousarray(columns.number(name)[rows])

    return CallRows(
        uids=columns.uids,
        communicator=of("communicator"),
        seq=of("seq").astype(np.int64),
        op=op.codes[rows],
        step=of("step").astype(np.int32),
        bucket=of("bucket").astype(np.int32),
        nbytes=of("bytes").astype(np.int64),
        thread=of("thread").astype(np.int32),
        peer=of("peer").astype(np.int32),
        status=status.codes[rows],
        start_ns=start,
        end_ns=end,
        ops=op.known,
        statuses=status.known,
    )


def work_times(columns: Columns, rows: Indices) -> tuple[Ints, Ints]:
    """Return begin and end of the work of some spans: on the device, where it was timed there."""
    start, end = columns.number("start_ns")[rows], columns.number("end_ns")[rows]
    if "device_duration_ns" not in columns:
        return start, end
    begun, length = (
        columns.number(name)[rows] for name in ("device_start_ns", "device_duration_ns")
    )
    known = (length >= 0) & (end != FOREVER)
    return np.where(known, begun, start), np.where(known, begun + length, end)


def _counters(columns: Columns) -> Counters:
    rows = np.zeros(0, np.intp)
    if "value" in columns:
        counts = columns.word("type").among(("counter",))
        rows = np.flatnonzero(counts & np.isfinite(columns.values["value"]))
    name, value = columns.word("name"), columns.values.get("value", np.zeros(0))
    return Counters(
        names=name.known,
        name=name.codes[rows],
        step=columns.number("step")[rows].astype(np.int32),
        thread=columns.number("thread")[rows].astype(np.int32),
        at_ns=columns.number("start_ns")[rows],
        value=value[rows],
    )
