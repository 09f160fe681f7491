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
    describe_processes,
    drop_repeated_spans,
    drop_unusable_spans,
    fitted,
    number_processes,
    wall_clocks,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens.model.recognition import Recognition


@dataclass(frozen=True)
class Origin:
    """The source of rows, and what else their reader knows.

    `name` names it in sentences, `file` in the process table; empty if it is no file.
    `members` are the ranks of communicators, those that did not record included. `unusable` rows, by
    reason, were left out by the reader, which says so in its notes. `dates`: times are moments since
    1970, and good to a millisecond. `once`: no row comes twice, so repeated rows are not looked for
    another.
    """

    name: str
    file: str = ""
    one_clock: bool = False
    dates: bool = False
    once: bool = False
    unusable: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[Note] = ()
    members: Mapping[str, Sequence[int]] = field(default_factory=dict)
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
    rows, rejected = drop_unusable_spans(rows, origin.unusable, origin.name)
    rows = number_processes(rows)
    rows, repeat_notes = drop_repeated_spans(rows, once=origin.once)
    rows, threads, thread_notes = inferred.lay_out_threads(rows)
    rows, call_notes = inferred.match_collectives(inferred.number_steps(rows))
    rows = inferred.number_messages(rows)
    processes = describe_processes(
        rows, threads, rejected, origin.name, origin.file, one_clock=origin.one_clock
    )
    return Trace(
        events=fitted(rows, EVENT_COLUMNS).sort("process", "start_ns", "depth").lazy(),
        processes=processes,
        communicators=inferred.communicator_table(rows, origin.members),
        threads=threads,
        clocks=wall_clocks(processes, dates=origin.dates),
        notes=(*origin.notes, *repeat_notes, *thread_notes, *call_notes, *rejected.notes),
        dropped=rejected.counts,
        recognition=origin.recognition,
    )
