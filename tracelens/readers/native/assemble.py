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
    EVENT_COLUMNS,
    PROCESS_COLUMNS,
    THREAD_COLUMNS,
    Note,
    Trace,
)
from tracelens.readers.native.arrow_file import Recording, read_arrow
from tracelens.readers.native.checks import usable_events
from tracelens.readers.native.plain_columns import read_usable, usable
from tracelens.readers.native.process_notes import (
    Recorded,
    choose_main,
    order_of,
    process_notes,
    retention_notes,
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
    """What one file holds: its events in outline, how many are not usable, and side tables.

    `cut`: the end of the file is missing; `running`: its process still writes to it. `table` holds the
    events themselves where there is no file to read them from again; `kept` what of them is asked for
    again, as far as there is memory for it.
    """

    file: str
    side: SideTables
    outline: Outline
    path: Path
    table: pa.Table | None = None
    kept: PackedColumns | None = None
    lost: dict[str, int] = field(default_factory=dict)
    cut: bool = False
    running: bool = False

    def fitting(self, room: int, beside: Part | None) -> tuple[Part, int]:
        """Return it with what it shares with another part, and how much room that leaves.

        Events for which there is no room are not kept.
        """
        part = self.sharing(beside)
        if part.kept is None:
            return part, room
        left = room - part.kept.bytes_beside(beside.kept if beside else None)
        return part if left >= 0 else replace(part, kept=None), left

    def sharing(self, beside: Part | None) -> Part:
        """Return it with what it shares with another part."""
        if beside is None:
            return self
        kept = self.kept.sharing(beside.kept) if self.kept else None
        return replace(self, outline=self.outline.sharing(beside.outline), kept=kept)


def assemble(parts: list[Part], notes: Iterable[Note] = ()) -> Trace:
    """Build the trace; processes are ordered by role (workers first), rank and age."""
    parts = sorted(parts, key=lambda part: order_of(part.side.process))
    rows, all_notes = [], list(notes)
    dropped: Counter[str] = Counter()
    for index, part in enumerate(parts):
        lost = add_counts(part.side.dropped, part.lost)
        dropped.update(lost)
        unintended = {reason: n for reason, n in lost.items() if reason not in CHOSEN_LOSSES}
        rows.append(_process(index, part, sum(unintended.values())))
        all_notes += process_notes(
            Recorded(part.file, part.side, part.outline.rows, part.cut, part.running), unintended
        )
    restarts = choose_main(rows)
    source = Source(
        {index: _recorded(index, part) for index, part in enumerate(parts)},
        kept={index: part.kept for index, part in enumerate(parts) if part.kept},
    )
    return Trace.from_source(
        source,
        outlines={index: part.outline for index, part in enumerate(parts)},
        processes=pl.DataFrame(rows, schema=PROCESS_COLUMNS),
        communicators=_communicators(parts),
        threads=_rows(parts, "threads", THREAD_COLUMNS, thread="index"),
        clocks=_rows(parts, "clocks", CLOCK_COLUMNS),
        notes=(*all_notes, *retention_notes([part.side for part in parts]), *restarts),
        dropped=dict(dropped),
    )


def _recorded(index: int, part: Part) -> RecordedPart:
    process = part.side.process
    return RecordedPart(part.path, index, process.rank, process.role, part.side, part.table)


@dataclass(frozen=True)
class RecordedPart:
    """The events of one process, in its file, or in memory where they are in none."""

    path: Path
    process: int
    rank: int
    role: str
    side: SideTables
    table: pa.Table | None = None
    window: tuple[int, int] | None = None  # around which alone it is read; null = whole

    def columns(self, names: Sequence[str], cache: BoundedCache) -> Columns:
        """Read some columns; more may come with them.

        Raises:
            UnusableInput: the file cannot be read (any more).
        """
        wanted = {*names, *ALWAYS_READ}
        if self.table is not None:
            return usable(Recording(self.table, self.side)).columns
        with _still_there(self.path):
            return read_usable(self.path, wanted, cache, self.window, self.side).columns

    def frame(self) -> pl.DataFrame:
        """Read all columns.

        Raises:
            UnusableInput: the file cannot be read (any more).
        """
        events, _ = usable_events(self._whole())
        owner = {"process": self.process, "rank": self.rank, "role": self.role}
        return events.with_columns(
            pl.lit(value, EVENT_COLUMNS[name]).alias(name) for name, value in owner.items()
        )

    def alone(self) -> RecordedPart:
        """Return it as it is: it shares nothing."""
        return self

    def trim_to(self, first_ns: int, last_ns: int) -> RecordedPart:
        """Return it without the batches that are surely outside of a time."""
        return replace(self, window=(first_ns, last_ns))

    def _whole(self) -> Recording:
        if self.table is not None:
            return Recording(self.table, self.side)
        with _still_there(self.path):
            found = read_arrow(self.path, None, self.window)
        return Recording(found.table, self.side, found.cut)


@contextmanager
def _still_there(path: Path) -> Iterator[None]:
    """Raise for a file that cannot be read that it could be before."""
    try:
        yield
    except (TraceLensError, OSError, ValueError, pa.ArrowException) as error:
        raise NotATrace(
            f"'{shown_name(path)}' could be read a moment ago and cannot any more "
            f"({error}): open the trace again."
        ) from error


def _process(index: int, part: Part, lost: int) -> dict[str, Any]:
    side, found = part.side, part.outline
    known = {name: getattr(side.process, name, None) for name in PROCESS_COLUMNS}
    return known | {
        "process": index,
        "clock_domain": side.process.clock_domain or side.process.host,
        "main": False,
        "complete": side.complete and not part.cut,
        "events": found.rows,
        "dropped": lost,
        "first_ns": found.first_ns,
        "last_ns": found.last_ns,
        "file": part.file,
        "detail": side.retention.detail,
        "last_steps": side.retention.last,
        "stepped": found.of_steps > 0,
        "child": side.process.parent_rank_pid is not None,
    }


def _communicators(parts: list[Part]) -> pl.DataFrame:
    rows = {
        group.uid: {"communicator": group.uid, "name": group.name, "ranks": group.ranks}
        for part in reversed(parts)
        for group in part.side.communicators
    }
    return pl.DataFrame(list(rows.values()), schema=COMMUNICATOR_COLUMNS)


def _rows(
    parts: list[Part], table: str, columns: dict[str, pl.DataType], **renamed: str
) -> pl.DataFrame:
    """Gather one side table of all processes; `renamed` maps columns to fields."""
    given = [getattr(part.side, table) for part in parts]
    rows = [*chain.from_iterable(given)]
    fields = {name: renamed.get(name, name) for name in columns if name != "process"}
    found = {name: [*map(attrgetter(field), rows)] for name, field in fields.items()}
    found["process"] = np.repeat(np.arange(len(parts)), [*map(len, given)]).tolist()
    return pl.DataFrame(found, schema=columns)
