"""The first pass over one process: its steps, its calls, and what little else all ranks must know.

Clocks are tied, steps are divided and calls are matched by outlines alone, so that no more of a run than
those is held at once. Times are those of the process's own clock, steps as they were recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens.memory import BoundedCache
from tracelens.model.columns import FOREVER, NULL
from tracelens.model.outline import CallRows, Counters, Outline, StepSpans
from tracelens.schema.vocabulary import (
    BEFORE_UPDATE,
    COLLECTIVES,
    EXCHANGE_KINDS,
    POINT_TO_POINT,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracelens.arrays import Array, Flags, Indices, Int32s, Ints
    from tracelens.model.columns import Columns, Words
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
_TIMES: Final = ("start_ns", "end_ns", "device_start_ns", "device_duration_ns")
_OF_CALLS: Final = ("communicator", "seq", "bytes", "peer")
# Of these, what is asked for again when outlines have been merged.
KEPT: Final = tuple(name for name in OUTLINED if name not in _OF_CALLS)


def outlined(trace: Trace) -> Mapping[int, Outline]:
    """Return the outline of each process; those that a reader made serve, as long as they hold."""
    if trace.outlines is not None:
        return trace.outlines
    tracks = in_flight_tracks(trace)
    source, cache = trace.source, BoundedCache()
    return {
        process: outline(source.columns(process, OUTLINED, cache), tracks.get(process, ()), cache)
        for process in source.parts
    }


def in_flight_tracks(trace: Trace) -> dict[int, list[int]]:
    """Return the tracks of each process on which operations run beside the code."""
    found: dict[int, list[int]] = {}
    for process, thread in trace.threads.filter("in_flight").select("process", "thread").rows():
        found.setdefault(process, []).append(thread)
    return found


def outline(columns: Columns, in_flight: Iterable[int], cache: BoundedCache) -> Outline:
    """Make the outline of one process.

    Args:
        columns: Its events, in order of begin, with the columns of `OUTLINED`.
        in_flight: Its tracks of operations that run beside the code.
        cache: Of the pass over all processes.
    """
    found = _found(columns, tuple(in_flight), cache)
    start, end = columns.number("start_ns"), columns.number("end_ns")
    last = np.maximum(start, end)
    if len(last) and int(last.max()) >= FOREVER:
        last = np.maximum(start, np.where(end == FOREVER, start, end))
    of_calls = work_times(columns, found.calls)
    return Outline(
        rows=columns.height,
        spans=found.spans,
        first_ns=int(start[0]) if len(start) else None,
        last_ns=int(last.max()) if len(start) else None,
        of_steps=found.of_steps,
        training_thread=found.training_thread,
        training_last_ns=int(last.take(found.on_training).max(initial=NULL)),
        steps=StepSpans(start_ns=start[found.steps], end_ns=end[found.steps], **found.step_facts),
        implied=(found.implied_steps, start[found.implied]),
        calls=CallRows(start_ns=of_calls[0], end_ns=of_calls[1], **found.call_facts),
        requests=found.requests,
        messages=found.messages,
        opened=found.opened,
        on_device=_on_device(columns),
        device_ns=_device_ns(columns),
        counters=_counters(columns, found.counters),
        names=columns.word("name").known,
        numberless=found.numberless,
    )


@dataclass(frozen=True, eq=False)
class _Found:
    """What of an outline follows without times: counts, rows, and what else stands in these."""

    spans: int
    of_steps: int
    training_thread: int | None
    on_training: Indices
    steps: Indices
    step_facts: dict[str, Array]
    implied: Indices
    implied_steps: Int32s
    calls: Indices
    call_facts: dict[str, Any]
    requests: int
    messages: int
    opened: int
    counters: Indices
    numberless: int


def _found(columns: Columns, in_flight: tuple[int, ...], cache: BoundedCache) -> _Found:
    """Look for what follows without times; the same columns as of another process have the same."""
    looked_at = {name: array for name, array in columns.numbers.items() if name not in _TIMES}
    looked_at |= {name: words.codes for name, words in columns.words.items()}
    texts = tuple((name, words.known) for name, words in columns.words.items())
    return cache.get_or_make(
        "outline",
        tuple(looked_at.values()),
        lambda: _look(columns, in_flight),
        *(columns.height, in_flight, columns.uids, texts, tuple(looked_at)),
    )


def _look(columns: Columns, in_flight: tuple[int, ...]) -> _Found:
    is_span, kind = columns.is_span, columns.word("kind")
    thread, of_step = columns.number("thread"), kind.among(("step",))
    update = kind.among(("update",))
    training = _training_thread(thread[is_span], (of_step[is_span], update[is_span]), in_flight)
    on_training = thread == training if training is not None else np.zeros(columns.height, np.bool_)
    reductions = np.flatnonzero(kind.among(("reduction",)) & is_span)
    collective = _with_op(columns, reductions, COLLECTIVES)
    numbered = (columns.number("communicator")[collective] >= 0) & (
        columns.number("seq")[collective] >= 0
    )
    steps = np.flatnonzero(of_step & is_span)
    implied_steps, implied = _implied(columns, np.flatnonzero(on_training & is_span), of_step)
    return _Found(
        spans=int(np.count_nonzero(is_span)),
        of_steps=int(np.count_nonzero(of_step)),
        training_thread=training,
        on_training=np.flatnonzero(on_training),
        steps=steps,
        step_facts={
            "step": columns.number("step")[steps],
            "depth": columns.number("depth")[steps],
            "on_training": on_training[steps],
        },
        implied=implied,
        implied_steps=implied_steps,
        calls=collective[numbered],
        call_facts=_call_facts(columns, collective[numbered]),
        requests=int(np.count_nonzero(kind.among(EXCHANGE_KINDS) & is_span)),
        messages=len(_with_op(columns, reductions, POINT_TO_POINT)),
        opened=int(np.count_nonzero(columns.word("status").among(("open",)) & is_span)),
        counters=np.flatnonzero(columns.word("type").among(("counter",))),
        numberless=int(len(collective) - np.count_nonzero(numbered)),
    )


def _training_thread(thread: Array, signs: Iterable[Flags], in_flight: Iterable[int]) -> int | None:
    """Return the thread with the most steps, else updates, else spans, of several the first.

    The busiest may be the one on which PyTorch computes gradients on a device.
    """
    if not len(thread):
        return None
    count = np.bincount(thread)
    count[[track for track in in_flight if track < len(count)]] = 0
    there = np.flatnonzero(count)
    if not len(there):
        return None
    most = [-np.bincount(thread[which], minlength=len(count))[there] for which in signs]
    return int(there[np.lexsort((there, -count[there], *reversed(most)))[0]])


def _with_op(columns: Columns, rows: Indices, ops: tuple[str, ...]) -> Indices:
    return rows[columns.word("op").taken(rows).among(ops)]


def _implied(columns: Columns, rows: Indices, of_step: Flags) -> tuple[Int32s, Indices]:
    """Return each step number on the training thread, and the row that it begins with.

    Where rows carry no numbers, steps are counted by the updates that end them, and all is step 0 where
    there are none of these either. Nothing where there are step spans.
    """
    rows = rows[:0] if of_step[rows].any() else rows
    numbers = columns.number("step")[rows]
    if numbers.max(initial=-1) > 0:
        step, first = np.unique(numbers, return_index=True)
        return step[step >= 0].astype(np.int32), rows[first[step >= 0]]
    begins = _between_updates(columns.word("kind").taken(rows))
    begins = begins if len(begins) > 1 else np.arange(min(len(rows), 1))
    return np.arange(len(begins), dtype=np.int32), rows[begins]


def _between_updates(kind: Words) -> Indices:
    """Return where steps begin that end with the last update before other work begins again."""
    update, work = kind.among(("update",)), kind.among(BEFORE_UPDATE)
    if not work.any():
        work = ~update
    places = np.flatnonzero(update | work)
    ends = np.flatnonzero(update[places])
    if not len(ends):
        return ends
    first = np.flatnonzero(work[places])[:1]
    after = np.flatnonzero(update[places][:-1] & work[places][1:]) + 1
    begins = np.union1d(first, after)
    return np.asarray(places[begins[begins < ends[-1]]])


def _call_facts(columns: Columns, rows: Indices) -> dict[str, Any]:
    """Return what `CallRows` holds beside times."""
    op, status = columns.word("op"), columns.word("status")

    def of(name: str) -> Array:
        return np.ascontiguousarray(columns.number(name)[rows])

    return {
        "uids": columns.uids,
        "communicator": of("communicator"),
        "seq": of("seq").astype(np.int64),
        "op": op.codes[rows],
        "step": of("step").astype(np.int32),
        "bucket": of("bucket").astype(np.int32),
        "nbytes": of("bytes").astype(np.int64),
        "thread": of("thread").astype(np.int32),
        "peer": of("peer").astype(np.int32),
        "status": status.codes[rows],
        "ops": op.known,
        "statuses": status.known,
    }


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


def _on_device(columns: Columns) -> int:
    timed = columns.numbers.get("device_duration_ns")
    return 0 if timed is None else int(np.count_nonzero(timed >= 0))


def _device_ns(columns: Columns) -> tuple[int, int] | None:
    timed = columns.numbers.get("device_duration_ns")
    rows = np.flatnonzero(timed >= 0) if timed is not None else np.zeros(0, np.int64)
    if not len(rows):
        return None
    begin, end = work_times(columns, rows)
    return int(begin.min()), int(end.max())


def _counters(columns: Columns, rows: Indices) -> Counters:
    """Return what counters read that tell a number, of some rows."""
    name, value = columns.word("name"), columns.values.get("value", np.zeros(0))
    rows = rows[np.isfinite(value[rows])] if len(value) else rows[:0]
    return Counters(
        names=name.known,
        name=name.codes[rows],
        step=columns.number("step")[rows].astype(np.int32),
        thread=columns.number("thread")[rows].astype(np.int32),
        at_ns=columns.number("start_ns")[rows],
        value=value[rows],
    )
