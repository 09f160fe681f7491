"""Builds a raw `Trace` of rows of spans: one frame for all ranks, in our own words and nanoseconds.

The frame needs ``rank``, ``start_ns``, ``end_ns`` (null = still open), ``kind`` and ``name``; a column
that the format does not have is left out, a cell that does not apply is null. Further columns::

    op            of `OPS`: with it a reduction is matched with those of other ranks
    role          worker (if there is no such column) or ps
    host, clock   words; ranks with the same clock share it. One clock per file takes one word per file
    file          its name, where each process has one of its own
    world, pid    numbers, of the process that the row is of
    thread        a name, or a number; null = the stream alone says where it ran
    stream        a number: the row ran on a device's stream (kinds device, forward, backprop, update,
                  reduction), at its own times; it becomes a track of its own, in flight
    device_start_ns, device_duration_ns   when a device did what the row's thread had queued
    step          number of the training step; rows of kind step count as steps
    communicator  a word, the same on all members and different for each group
    seq           counts a communicator's collectives, alike on all ranks; null = by their order
    bytes, peer, bucket, shard, key, value, type, status, algorithm, request, queue_depth, micro_step

Steps without a number, threads in flight, order of calls, nesting: all that is inferred, as from a
table (docs/tables.md), and noted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from tracelens.model.trace import EVENT_COLUMNS, Note, Trace
from tracelens.readers.spans import inferred
from tracelens.readers.spans.rows import (
    build_wall_clocks,
    describe_processes,
    drop_repeated_spans,
    drop_unusable_spans,
    fit_columns,
    number_processes,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens.model.recognition import Recognition


@dataclass(frozen=True)
class Origin:
    """The source of rows, and what else their reader knows."""

    name: str  # in sentences
    file: str = ""  # in the process table; empty if it is no file
    has_one_clock: bool = False  # all times are of one
    has_dates: bool = False  # times are moments since 1970, and good to a millisecond
    has_no_repeats: bool = False  # no row comes twice, so repeated rows are not looked for
    # Rows that the reader left out, which it says in its notes.
    unusable_by_reason: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[Note] = ()
    # Including ranks that did not record.
    ranks_by_communicator: Mapping[str, Sequence[int]] = field(default_factory=dict)
    recognition: Recognition | None = None


def build(rows: pl.DataFrame, origin: Origin) -> Trace:
    """Return the trace of some rows, one per span, before alignment.

    Raises:
        UnusableInput: no row is usable, or a rank has rows of several hosts.
    """
    if "role" not in rows.columns:
        rows = rows.with_columns(role=pl.lit("worker", pl.Categorical()))
    if "op" not in rows.columns:
        rows = rows.with_columns(op=pl.lit(None, pl.Categorical()))
    rows, rejected = drop_unusable_spans(rows, origin.unusable_by_reason, origin.name)
    rows = number_processes(rows)
    rows, repeat_notes = drop_repeated_spans(rows, has_no_repeats=origin.has_no_repeats)
    rows, threads, thread_notes = inferred.lay_out_threads(rows)
    rows, call_notes = inferred.match_collectives(inferred.number_steps(rows))
    rows = inferred.number_messages(rows)
    processes = describe_processes(
        rows, threads, rejected, origin.name, origin.file, has_one_clock=origin.has_one_clock
    )
    return Trace(
        events=fit_columns(rows, EVENT_COLUMNS).sort("process", "start_ns", "depth").lazy(),
        processes=processes,
        communicators=inferred.build_communicator_table(rows, origin.ranks_by_communicator),
        threads=threads,
        clocks=build_wall_clocks(processes, has_dates=origin.has_dates),
        notes=(*origin.notes, *repeat_notes, *thread_notes, *call_notes, *rejected.notes),
        dropped=rejected.count_by_reason,
        recognition=origin.recognition,
    )
