"""Joins the recordings of single processes into one `Trace`.

Notes list what each lacks, and what the user asked to leave out, so that it is not taken for all
that happened.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from tracelens.errors import NotATrace, TraceLensError
from tracelens.model.events import Source
from tracelens.model.fmt import shown_name
from tracelens.model.trace import (
    CLOCK_COLUMNS,
    COMMUNICATOR_COLUMNS,
    ENDING_COLUMNS,
    EVENT_COLUMNS,
    PROCESS_COLUMNS,
    THREAD_COLUMNS,
    Note,
    Trace,
)
from tracelens.readers.native.arrow_file import Recording, read_arrow
from tracelens.readers.native.checks import select_usable_events
from tracelens.readers.native.plain_columns import read_usable, select_usable
from tracelens.readers.native.process_notes import (
    choose_main,
    find_last_wall_ns,
    note_process_losses,
    note_retention,
    process_sort_key,
)
from tracelens.readers.native.soundness import ALWAYS_READ
from tracelens.schema.rules import add_counts
from tracelens.schema.vocabulary import CHOSEN_LOSSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from tracelens.memory import BoundedCache
    from tracelens.model.columns import Columns
    from tracelens.model.outline import Outline
    from tracelens.model.packed_columns import PackedColumns
    from tracelens.schema.side import SideTables


@dataclass(frozen=True, eq=False)
class Part:
    """What one file holds: its events in outline, how many are not usable, and side tables."""

    file_name: str
    side_tables: SideTables
    outline: Outline
    path: Path
    table: pa.Table | None = None  # the events, where there is no file to read them from again
    kept_columns: PackedColumns | None = None  # what of them is asked for again, if there is memory
    lost_by_reason: dict[str, int] = field(default_factory=dict)  # numbers of events
    is_cut: bool = False  # the end of the file is missing
    is_running: bool = False  # its process still writes to it

    def fit_into(self, free_bytes: int, neighbour: Part | None) -> tuple[Part, int]:
        """Return the part, sharing what is equal in `neighbour`, and how many bytes it leaves free.

        Events for which too few bytes are free are not kept; then the number is negative.
        """
        shared_part = self.share_with(neighbour)
        if shared_part.kept_columns is None:
            return shared_part, free_bytes
        neighbour_columns = neighbour.kept_columns if neighbour else None
        free_bytes -= shared_part.kept_columns.count_unshared_bytes(neighbour_columns)
        if free_bytes < 0:
            shared_part = replace(shared_part, kept_columns=None)
        return shared_part, free_bytes

    def share_with(self, neighbour: Part | None) -> Part:
        """Return the part with the arrays of another part where they are equal, so that one is kept."""
        if neighbour is None:
            return self
        kept_columns, outline = self.kept_columns, self.outline.share_arrays_of(neighbour.outline)
        if kept_columns:
            kept_columns = kept_columns.share_arrays_of(neighbour.kept_columns)
        return replace(self, outline=outline, kept_columns=kept_columns)


def assemble(recordings: list[Part], notes: Iterable[Note] = ()) -> Trace:
    """Build a trace of recordings, one per process, ordered by role (workers first), rank and age."""
    recordings = sorted(
        recordings, key=lambda recording: process_sort_key(recording.side_tables.process)
    )
    process_rows, all_notes = [], list(notes)
    dropped_by_reason: Counter[str] = Counter()
    for index, recording in enumerate(recordings):
        lost_by_reason = add_counts(recording.side_tables.dropped, recording.lost_by_reason)
        dropped_by_reason.update(lost_by_reason)
        unintended_losses = {
            reason: count for reason, count in lost_by_reason.items() if reason not in CHOSEN_LOSSES
        }
        process_rows.append(_process_row(index, recording, sum(unintended_losses.values())))
        all_notes += note_process_losses(
            recording.file_name,
            recording.side_tables,
            recording.outline.event_count,
            unintended_losses,
            is_cut=recording.is_cut,
            is_running=recording.is_running,
        )
    restart_notes = choose_main(process_rows)
    source = Source(
        {
            index: _make_recorded_part(index, recording)
            for index, recording in enumerate(recordings)
        },
        packed_by_process={
            index: recording.kept_columns
            for index, recording in enumerate(recordings)
            if recording.kept_columns
        },
    )
    return Trace.from_source(
        source,
        outlines={index: recording.outline for index, recording in enumerate(recordings)},
        processes=pl.DataFrame(process_rows, schema=PROCESS_COLUMNS),
        communicators=_build_communicators(
            [
                recording
                for recording, row in zip(recordings, process_rows, strict=True)
                if _is_current(row)
            ]
        ),
        threads=_join_side_tables(recordings, "threads", THREAD_COLUMNS, thread="index"),
        clocks=_join_side_tables(recordings, "clocks", CLOCK_COLUMNS),
        endings=_join_side_tables(recordings, "endings", ENDING_COLUMNS),
        notes=(
            *all_notes,
            *note_retention([recording.side_tables for recording in recordings]),
            *restart_notes,
        ),
        dropped=dict(dropped_by_reason),
    )


def _make_recorded_part(index: int, part: Part) -> RecordedPart:
    process = part.side_tables.process
    return RecordedPart(part.path, index, process.rank, process.role, part.side_tables, part.table)


@dataclass(frozen=True)
class RecordedPart:
    """The events of one process, in its file, or in memory if it has none.

    Of `window_ns`, batches that are outside need not be read; None = all are.
    """

    path: Path
    process: int
    rank: int
    role: str
    side_tables: SideTables
    table: pa.Table | None = None
    window_ns: tuple[int, int] | None = None

    def read_columns(self, names: Sequence[str], cache: BoundedCache) -> Columns:
        """Read some columns; more may come with them.

        Raises:
            UnusableInput: the file cannot be read (any more).
        """
        if self.table is not None:
            return select_usable(Recording(self.table, self.side_tables)).columns
        with _name_damage(self.path):
            column_names = {*names, *ALWAYS_READ}
            return read_usable(
                self.path, column_names, cache, self.window_ns, self.side_tables
            ).columns

    def read_frame(self) -> pl.DataFrame:
        """Read all columns.

        Raises:
            UnusableInput: the file cannot be read (any more).
        """
        table = self.table
        if table is None:
            with _name_damage(self.path):
                table = read_arrow(self.path, window_ns=self.window_ns).table
        events, _ = select_usable_events(Recording(table, self.side_tables))
        process_cells = {"process": self.process, "rank": self.rank, "role": self.role}
        return events.with_columns(
            pl.lit(value, EVENT_COLUMNS[name]).alias(name) for name, value in process_cells.items()
        )

    def detach(self) -> RecordedPart:
        """Return it as it is: it shares nothing."""
        return self

    def trim_to(self, first_ns: int, last_ns: int) -> RecordedPart:
        """Return it without the batches that are surely outside of a time."""
        return replace(self, window_ns=(first_ns, last_ns))


@contextmanager
def _name_damage(path: Path) -> Iterator[None]:
    """Add to errors while a file is read that it could be read before."""
    try:
        yield
    except (TraceLensError, OSError, ValueError, pa.ArrowException) as error:
        raise NotATrace(
            f"'{shown_name(path)}' could be read a moment ago and cannot any more "
            f"({error}): open the trace again."
        ) from error


def _process_row(index: int, recording: Part, lost_count: int) -> dict[str, Any]:
    """Return the row of `Trace.processes` of a process, which lost some events unintentionally."""
    side, outline = recording.side_tables, recording.outline
    return {name: getattr(side.process, name, None) for name in PROCESS_COLUMNS} | {
        "process": index,
        "clock_domain": side.process.clock_domain or side.process.host,
        "main": False,  # `choose_main` sets it, by `stepped` and `child`
        "complete": side.complete and not recording.is_cut,
        "events": outline.event_count,
        "dropped": lost_count,
        "first_ns": outline.first_ns,
        "last_ns": outline.last_ns,
        "file": recording.file_name,
        "detail": side.retention.detail,
        "last_steps": side.retention.last,
        "stepped": outline.step_event_count > 0,
        "child": side.process.parent_rank_pid is not None,
        "ended_wall_ns": find_last_wall_ns(side, outline.last_ns),
    }


def _is_current(row: dict[str, Any]) -> bool:
    """Return True for the main process of a rank and its children: not for an earlier attempt's."""
    return bool(row["main"] or row["child"])


def _build_communicators(recordings: list[Part]) -> pl.DataFrame:
    row_by_uid = {
        group.uid: {"communicator": group.uid, "name": group.name, "ranks": group.ranks}
        for recording in reversed(recordings)
        for group in recording.side_tables.communicators
    }
    return pl.DataFrame(list(row_by_uid.values()), schema=COMMUNICATOR_COLUMNS)


def _join_side_tables(
    recordings: list[Part],
    table_name: str,
    columns: dict[str, pl.DataType],
    **field_by_column: str,
) -> pl.DataFrame:
    """Join one side table of all processes; `field_by_column` are columns named unlike their field."""
    tables = [getattr(recording.side_tables, table_name) for recording in recordings]
    rows = [*chain.from_iterable(tables)]
    fields = {name: field_by_column.get(name, name) for name in columns if name != "process"}
    cells = {name: [*map(attrgetter(field_name), rows)] for name, field_name in fields.items()}
    cells["process"] = np.repeat(np.arange(len(recordings)), [*map(len, tables)]).tolist()
    return pl.DataFrame(cells, schema=columns)
