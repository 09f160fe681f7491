"""Joins the recordings of single processes into one `Trace`.

Notes list what each lacks, and what the user asked to leave out, so that it is not taken for all
that happened.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from tracelens.model.trace import (
    CLOCK_COLUMNS,
    COMMUNICATOR_COLUMNS,
    EVENT_COLUMNS,
    PROCESS_COLUMNS,
    THREAD_COLUMNS,
    Note,
    Trace,
    completed,
)
from tracelens.readers.native.process_notes import (
    UNUSABLE,
    Recorded,
    choose_main,
    order_of,
    process_notes,
    retention_notes,
)
from tracelens.readers.native.spill import IN_MEMORY, Spill
from tracelens.schema.vocabulary import CHOSEN_LOSSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracelens.schema.side import SideTables


@dataclass(frozen=True)
class Part:
    """What one file holds: usable events, how many were not, and side tables.

    `cut`: the end of the file is missing; `running`: its process still writes to it.
    """

    file: str
    side: SideTables
    events: pl.DataFrame
    unusable: int = 0
    cut: bool = False
    running: bool = False


def assemble(parts: list[Part], notes: Iterable[Note] = ()) -> Trace:
    """Build the trace; processes are ordered by role (workers first), rank and age.

    The parts' events are taken out of them, so that there are never two copies of all.
    """
    parts = sorted(parts, key=lambda part: order_of(part.side.process))
    rows, all_notes = [], list(notes)
    dropped: Counter[str] = Counter()
    for index, part in enumerate(parts):
        lost = part.side.dropped | ({UNUSABLE: part.unusable} if part.unusable else {})
        dropped.update(lost)
        unintended = {reason: n for reason, n in lost.items() if reason not in CHOSEN_LOSSES}
        rows.append(_process(index, part, sum(unintended.values())))
        all_notes += process_notes(_recorded(part), unintended)
    restarts = choose_main(rows)
    return Trace(
        events=_events(parts),
        processes=pl.DataFrame(rows, schema=PROCESS_COLUMNS),
        communicators=_communicators(parts),
        threads=_rows(parts, "threads", THREAD_COLUMNS, thread="index"),
        clocks=_rows(parts, "clocks", CLOCK_COLUMNS),
        notes=(*all_notes, *retention_notes(part.side for part in parts), *restarts),
        dropped=dict(dropped),
    )


def _events(parts: list[Part]) -> pl.LazyFrame:
    """Join the events column by column; of very many, the columns stay in chunks."""
    few = sum(part.events.height for part in parts) <= IN_MEMORY
    owners = pl.concat(_owners(parts), rechunk=few)
    held = {name for part in parts for name in part.events.columns}
    columns = [_joined(parts, name, rechunk=few) for name in EVENT_COLUMNS if name in held]
    return completed(owners.hstack(columns))


def _owners(parts: list[Part]) -> Iterator[pl.DataFrame]:
    """Return the process of each event, row by row."""
    spill = Spill()
    for index, part in enumerate(parts):
        process = part.side.process
        columns = {"process": index, "rank": process.rank, "role": process.role}
        spill.put(
            pl.DataFrame(
                pl.Series(name, [value], EVENT_COLUMNS[name]).new_from_index(0, part.events.height)
                for name, value in columns.items()
            )
        )
    return spill.frames()


def _joined(parts: list[Part], name: str, *, rechunk: bool) -> pl.Series:
    """Concatenate a column of all parts."""
    kind = EVENT_COLUMNS[name]
    return pl.concat(
        [
            part.events.drop_in_place(name)
            if name in part.events.columns
            else pl.Series(name, [], kind).extend_constant(None, part.events.height)
            for part in parts
        ],
        rechunk=rechunk,
    )


def _recorded(part: Part) -> Recorded:
    return Recorded(part.file, part.side, part.events.height, part.cut, part.running)


def _process(index: int, part: Part, lost: int) -> dict[str, Any]:
    side, events = part.side, part.events
    last = events.select(pl.max_horizontal("start_ns", "end_ns").max()).item()
    known = {name: getattr(side.process, name, None) for name in PROCESS_COLUMNS}
    return known | {
        "process": index,
        "clock_domain": side.process.clock_domain or side.process.host,
        "main": False,
        "complete": side.complete and not part.cut,
        "events": events.height,
        "dropped": lost,
        "first_ns": events["start_ns"].min(),
        "last_ns": last,
        "file": part.file,
        "detail": side.retention.detail,
        "last_steps": side.retention.last,
        "stepped": bool((events["kind"] == "step").any()),
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
    rows = [
        {name: given.get(renamed.get(name, name)) for name in columns} | {"process": index}
        for index, part in enumerate(parts)
        for given in map(asdict, getattr(part.side, table))
    ]
    return pl.DataFrame(rows, schema=columns)
