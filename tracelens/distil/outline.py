"""The first pass over one process: its steps, its calls, and what little else all ranks must know.

Clocks are tied, steps are divided and calls are matched by outlines alone, so that no more of a run than
those is held at a time. Times are those of the process's own clock, steps as they were recorded.
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

__all__ = ["KEPT", "OUTLINED", "find_work_times_ns", "list_outlines", "make_outline"]

# The columns that an outline is made of; others need not be read for it.
OUTLINED: Final = (
    "start_ns", "end_ns", "type", "kind", "op", "name", "status", "thread", "depth", "step",
    "communicator", "seq", "bytes", "bucket", "peer",
    "device_start_ns", "device_duration_ns", "stream", "value",
)  # fmt: skip
_TIMES: Final = ("start_ns", "end_ns", "device_start_ns", "device_duration_ns")
_OF_CALLS: Final = ("communicator", "seq", "bytes", "peer")
# Of these, what is asked for again when outlines have been merged.
KEPT: Final = tuple(name for name in OUTLINED if name not in _OF_CALLS)


def list_outlines(trace: Trace) -> Mapping[int, Outline]:
    """Return the outline of each process, by process; a reader may have made them already."""
    if trace.outlines is not None:
        return trace.outlines
    tracks = list_in_flight_tracks(trace)  # by process: threads that are operations in flight
    source, cache = trace.source, BoundedCache()
    return {
        process: make_outline(
            source.read_columns(process, OUTLINED, cache), tracks.get(process, ()), cache
        )
        for process in source.part_by_process
    }


def list_in_flight_tracks(trace: Trace) -> dict[int, list[int]]:
    """Return the tracks of each process on which operations are in flight."""
    tracks_by_process: dict[int, list[int]] = {}
    for process, thread in trace.threads.filter("in_flight").select("process", "thread").rows():
        tracks_by_process.setdefault(process, []).append(thread)
    return tracks_by_process


def make_outline(columns: Columns, in_flight: Iterable[int], cache: BoundedCache) -> Outline:
    """Make the outline of one process.

    Args:
        columns: Its events, in order of begin, with the columns of `OUTLINED`.
        in_flight: Its tracks of operations in flight.
        cache: Of the pass over all processes.
    """
    timeless = _find_timeless(columns, tuple(in_flight), cache)
    start_ns, end_ns = columns.number_column("start_ns"), columns.number_column("end_ns")
    last_ns = np.maximum(start_ns, end_ns)
    if len(last_ns) and int(last_ns.max()) >= FOREVER:
        last_ns = np.maximum(start_ns, np.where(end_ns == FOREVER, start_ns, end_ns))
    call_begins_ns, call_ends_ns = find_work_times_ns(columns, timeless.call_rows)
    return Outline(
        event_count=columns.row_count,
        first_ns=int(start_ns[0]) if len(start_ns) else None,
        last_ns=int(last_ns.max()) if len(start_ns) else None,
        training_last_ns=int(last_ns.take(timeless.training_rows).max(initial=NULL)),
        step_spans=StepSpans(
            start_ns=start_ns[timeless.step_rows],
            end_ns=end_ns[timeless.step_rows],
            **timeless.step_facts,
        ),
        implied_steps=(timeless.implied_steps, start_ns[timeless.implied_step_rows]),
        calls=CallRows(start_ns=call_begins_ns, end_ns=call_ends_ns, **timeless.call_facts),
        device_span_count=_count_on_device(columns),
        device_extent_ns=_find_device_extent_ns(columns),
        counters=_read_counters(columns, timeless.counter_rows),
        span_names=columns.word_column("name").vocabulary,
        **timeless.outline_counts,
    )


@dataclass(frozen=True, eq=False)
class _TimelessOutline:
    """The part of an outline that needs no times: counts, row numbers, and facts of those rows."""

    outline_counts: dict[str, Any]  # fields of `Outline`
    training_rows: Indices
    step_rows: Indices
    step_facts: dict[str, Array]
    implied_step_rows: Indices
    implied_steps: Int32s
    call_rows: Indices
    call_facts: dict[str, Any]
    counter_rows: Indices


def _find_timeless(
    columns: Columns, in_flight: tuple[int, ...], cache: BoundedCache
) -> _TimelessOutline:
    """Find the part of an outline that needs no times, once for all processes with equal columns."""
    arrays = {name: array for name, array in columns.number_columns.items() if name not in _TIMES}
    arrays |= {name: words.codes for name, words in columns.word_columns.items()}
    texts = tuple((name, words.vocabulary) for name, words in columns.word_columns.items())
    return cache.get_or_make(
        "outline",
        tuple(arrays.values()),
        lambda: _outline_without_times(columns, in_flight),
        *(columns.row_count, in_flight, columns.communicator_uids, texts, tuple(arrays)),
    )


def _outline_without_times(columns: Columns, in_flight: tuple[int, ...]) -> _TimelessOutline:
    """Find the part of an outline that needs no times; `in_flight` are tracks that are no threads."""
    is_span, kinds = columns.is_span, columns.word_column("kind")
    threads, is_step = columns.number_column("thread"), kinds.is_in(("step",))
    is_update = kinds.is_in(("update",))
    training = _find_training_thread(
        threads[is_span], (is_step[is_span], is_update[is_span]), in_flight
    )
    on_training = threads == (NULL if training is None else training)
    reductions = np.flatnonzero(kinds.is_in(("reduction",)) & is_span)
    collectives = _select_ops(columns, reductions, COLLECTIVES)
    has_number = (columns.number_column("communicator")[collectives] >= 0) & (
        columns.number_column("seq")[collectives] >= 0
    )
    steps = np.flatnonzero(is_step & is_span)
    implied_steps, implied = _find_implied_steps(
        columns, np.flatnonzero(on_training & is_span), is_step
    )
    return _TimelessOutline(
        outline_counts={
            "span_count": int(np.count_nonzero(is_span)),
            "step_event_count": int(np.count_nonzero(is_step)),
            "training_thread": training,
            "request_count": int(np.count_nonzero(kinds.is_in(EXCHANGE_KINDS) & is_span)),
            "message_count": len(_select_ops(columns, reductions, POINT_TO_POINT)),
            "open_span_count": int(
                np.count_nonzero(columns.word_column("status").is_in(("open",)) & is_span)
            ),
            "unnumbered_call_count": int(len(collectives) - np.count_nonzero(has_number)),
        },
        training_rows=np.flatnonzero(on_training),
        step_rows=steps,
        step_facts={
            "step": columns.number_column("step")[steps],
            "depth": columns.number_column("depth")[steps],
            "is_on_training_thread": on_training[steps],
        },
        implied_step_rows=implied,
        implied_steps=implied_steps,
        call_rows=collectives[has_number],
        call_facts=_read_call_facts(columns, collectives[has_number]),
        counter_rows=np.flatnonzero(columns.word_column("type").is_in(("counter",))),
    )


def _find_training_thread(
    threads: Array, span_masks: Iterable[Flags], in_flight: Iterable[int]
) -> int | None:
    """Return the thread with the most steps, else updates, else spans; of several the first.

    The busiest may be the one on which PyTorch computes gradients on a device. Masks (of steps, of
    updates) are [span]; tracks `in_flight` are no threads.
    """
    if not len(threads):
        return None
    counts = np.bincount(threads)
    counts[[track for track in in_flight if track < len(counts)]] = 0
    busy = np.flatnonzero(counts)
    if not len(busy):
        return None
    negated_counts = [
        -np.bincount(threads[is_of_kind], minlength=len(counts))[busy] for is_of_kind in span_masks
    ]
    return int(busy[np.lexsort((busy, -counts[busy], *reversed(negated_counts)))[0]])


def _select_ops(columns: Columns, rows: Indices, ops: tuple[str, ...]) -> Indices:
    return rows[columns.word_column("op").take(rows).is_in(ops)]


def _find_implied_steps(columns: Columns, rows: Indices, is_step: Flags) -> tuple[Int32s, Indices]:
    """Return each step number on the training thread (`rows`), and the row that it begins with.

    Where rows carry no numbers, steps are counted by the updates that end them, and all is step 0 where
    updates are missing, too. Empty where step spans were recorded (`is_step`, [event]).
    """
    rows = rows[:0] if is_step[rows].any() else rows
    step_numbers = columns.number_column("step")[rows]
    if step_numbers.max(initial=-1) > 0:
        steps, first_rows = np.unique(step_numbers, return_index=True)
        return steps[steps >= 0].astype(np.int32), rows[first_rows[steps >= 0]]
    begins = _find_begins_between_updates(columns.word_column("kind").take(rows))
    begins = begins if len(begins) > 1 else np.arange(min(len(rows), 1))
    return np.arange(len(begins), dtype=np.int32), rows[begins]


def _find_begins_between_updates(kind: Words) -> Indices:
    """Return the rows of `kind`, [span by begin], with which steps begin, each after an update."""
    is_update, is_work = kind.is_in(("update",)), kind.is_in(BEFORE_UPDATE)
    if not is_work.any():
        is_work = ~is_update
    work_rows = np.flatnonzero(is_update | is_work)
    update_indices = np.flatnonzero(is_update[work_rows])
    if not len(update_indices):
        return update_indices
    first_work = np.flatnonzero(is_work[work_rows])[:1]
    next_begins = np.flatnonzero(is_update[work_rows][:-1] & is_work[work_rows][1:]) + 1
    begins = np.union1d(first_work, next_begins)
    return np.asarray(work_rows[begins[begins < update_indices[-1]]])


def _read_call_facts(columns: Columns, rows: Indices) -> dict[str, Any]:
    """Return all fields of `CallRows` but the times, [call]; `rows` of `columns` are the calls."""
    op, status = columns.word_column("op"), columns.word_column("status")

    def column_of(name: str) -> Array:
        return np.ascontiguousarray(columns.number_column(name)[rows])

    return {
        "communicator_uids": columns.communicator_uids,
        "communicator": column_of("communicator"),
        "seq": column_of("seq").astype(np.int64),
        "op": op.codes[rows],
        "step": column_of("step").astype(np.int32),
        "bucket": column_of("bucket").astype(np.int32),
        "nbytes": column_of("bytes").astype(np.int64),
        "thread": column_of("thread").astype(np.int32),
        "peer": column_of("peer").astype(np.int32),
        "status": status.codes[rows],
        "ops": op.vocabulary,
        "statuses": status.vocabulary,
    }


def find_work_times_ns(columns: Columns, rows: Indices) -> tuple[Ints, Ints]:
    """Return begin and end of the work of some spans, [row], ns: on the device if it was timed there."""
    start_ns, end_ns = (columns.number_column(name)[rows] for name in ("start_ns", "end_ns"))
    if "device_duration_ns" not in columns:
        return start_ns, end_ns
    device_ns, lengths_ns = (
        columns.number_column(name)[rows] for name in ("device_start_ns", "device_duration_ns")
    )
    is_timed = (lengths_ns >= 0) & (end_ns != FOREVER)
    begin_ns = np.where(is_timed, device_ns, start_ns)
    return begin_ns, np.where(is_timed, device_ns + lengths_ns, end_ns)


def _count_on_device(columns: Columns) -> int:
    timed = columns.number_columns.get("device_duration_ns")
    return 0 if timed is None else int(np.count_nonzero(timed >= 0))


def _find_device_extent_ns(columns: Columns) -> tuple[int, int] | None:
    """Return when devices began their first and ended their last work, ns; None without any."""
    lengths_ns = columns.number_columns.get("device_duration_ns")
    rows = np.flatnonzero(lengths_ns >= 0) if lengths_ns is not None else np.zeros(0, np.int64)
    if not len(rows):
        return None
    begins_ns, ends_ns = find_work_times_ns(columns, rows)
    return int(begins_ns.min()), int(ends_ns.max())


def _read_counters(columns: Columns, rows: Indices) -> Counters:
    """Return the finite readings of counters, [reading], among some `rows` of `columns`."""
    names, values = columns.word_column("name"), columns.value_columns.get("value", np.zeros(0))
    rows = rows[np.isfinite(values[rows])] if len(values) else rows[:0]
    return Counters(
        names=names.vocabulary,
        name_codes=names.codes[rows],
        step=columns.number_column("step")[rows].astype(np.int32),
        thread=columns.number_column("thread")[rows].astype(np.int32),
        times_ns=columns.number_column("start_ns")[rows],
        values=values[rows],
    )
