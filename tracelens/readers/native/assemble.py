"""Joins the recordings of single processes into one `Trace`.

Notes list what each lacks, and what the user asked to leave out, so that it is not taken for all
that happened.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.model.fmt import duration
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
from tracelens.readers.native.spill import IN_MEMORY, Spill
from tracelens.schema.vocabulary import CHOSEN_LOSSES, OUTDATED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tracelens.schema.side import Past, Retention, SideTables


UNUSABLE: Final = "unusable values"
# Needed to choose the main processes, and not kept.
_EXTRA: Final[dict[str, pl.DataType]] = {"steps": pl.Int64(), "child": pl.Boolean()}


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
    parts = sorted(parts, key=_order)
    rows, all_notes = [], list(notes)
    dropped: Counter[str] = Counter()
    for index, part in enumerate(parts):
        lost = part.side.dropped | ({UNUSABLE: part.unusable} if part.unusable else {})
        dropped.update(lost)
        unintended = {reason: n for reason, n in lost.items() if reason not in CHOSEN_LOSSES}
        rows.append(_process(index, part, sum(unintended.values())))
        all_notes += _notes(part, unintended)
    processes, restarts = _with_main(pl.DataFrame(rows, schema=PROCESS_COLUMNS | _EXTRA))
    return Trace(
        events=_events(parts),
        processes=processes.select(*PROCESS_COLUMNS),
        communicators=_communicators(parts),
        threads=_rows(parts, "threads", THREAD_COLUMNS, thread="index"),
        clocks=_rows(parts, "clocks", CLOCK_COLUMNS),
        notes=(*all_notes, *_chosen_notes([part.side for part in parts]), *restarts),
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


def _order(part: Part) -> tuple[bool, int, int, int]:
    process = part.side.process
    return (process.role == "ps", process.rank, process.incarnation, process.pid)


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
        "steps": events.filter(pl.col("kind") == "step").height,
        "child": side.process.parent_rank_pid is not None,
    }


def _with_main(processes: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """Mark the main process of each rank; note ranks that had several."""
    candidates = processes.filter(~pl.col("child"))
    best = (
        candidates.with_columns(stepped=pl.col("steps") > 0)
        .sort("stepped", "incarnation", "events", descending=True, maintain_order=True)
        .group_by("role", "rank", maintain_order=True)
        .agg(pl.col("process").first(), pl.col("pid").first(), ran=pl.col("stepped").sum())
    )
    marked = processes.with_columns(main=pl.col("process").is_in(best["process"].implode()))
    several = best.filter(pl.col("ran") > 1).sort("role", "rank")
    return marked, [_restart(row) for row in several.iter_rows(named=True)]


def _restart(row: dict[str, Any]) -> Note:
    subject = "Rank" if row["role"] == "worker" else "Parameter server"
    sentence = (
        f"{subject} {row['rank']} was recorded {row['ran']} times: the latest with steps, process "
        f"{row['pid']}, stands for it, the others are kept apart."
    )
    return Note(file="", sentence=sentence, kind="restarted")


def _notes(part: Part, lost: dict[str, int]) -> list[Note]:
    """Return notes on what this process's recording lacks."""
    file, events, notes = part.file, part.events, []
    if part.cut:
        sentence = f"'{file}' is damaged or cut off: its first {events.height} events are used."
        notes.append(Note(file, sentence, "truncated"))
    elif part.running:
        sentence = (
            f"'{file}' is still being recorded: its {events.height} events up to now are used."
        )
        notes.append(Note(file, sentence, "running"))
    elif not part.side.complete:
        sentence = (
            f"'{file}' did not end its recording itself (killed, or still running): "
            f"all {events.height} events up to then are used."
        )
        notes.append(Note(file, sentence, "incomplete"))
    if not events.height:
        notes.append(Note(file, f"'{file}' holds no events.", "incomplete"))
    if lost:
        reasons = ", ".join(f"{count} for {reason}" for reason, count in sorted(lost.items()))
        notes.append(Note(file, f"'{file}' lost events: {reasons}.", "dropped"))
    return notes


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


def _chosen_notes(sides: Sequence[SideTables]) -> list[Note]:
    """Return notes on what was left out as asked: by the recording, and by a conversion of it."""
    converted = dict.fromkeys(sentence for side in sides for sentence in side.notes)
    return [*_retention_notes(sides), *(Note("", sentence, "chosen") for sentence in converted)]


def _retention_notes(sides: Iterable[SideTables]) -> list[Note]:
    """Return notes, once for all processes with the same options, on which steps lack what."""
    thinned: Counter[tuple[int, int]] = Counter()
    outdated: Counter[int] = Counter()
    dropped: dict[int, list[Past]] = {}
    for side in sides:
        asked: Retention = side.retention
        if asked.every is not None:
            thinned[asked.every, asked.burst] += sum(side.thinned.values())
        if asked.last is not None:
            outdated[asked.last] += side.dropped.get(OUTDATED, 0)
            dropped.setdefault(asked.last, []).extend(side.past)
    return [
        *(_of_detail(*steps, count) for steps, count in thinned.items()),
        *(_of_the_past(steps, count, dropped[steps]) for steps, count in outdated.items() if count),
    ]


def _of_detail(every: int, burst: int, count: int) -> Note:
    sentence = (
        f"As asked, {burst} of every {every} steps have all their events; of the others {count:,} were "
        "left out. Steps and phases are whole in all of them, so shares of time are of the whole run; "
        "counts of spans and calls are not."
    )
    return Note("", sentence, "chosen")


def _of_the_past(last: int, count: int, dropped: Sequence[Past]) -> Note:
    sentence = (
        f"As asked, only the last {last} steps were kept, and those that were marked: {count:,} older "
        "events were left out. The time between marked steps and the last ones counts nowhere: shares "
        "of time, and efficiency, are of the steps that are here."
        f"{_how_long(dropped)}"
    )
    return Note("", sentence, "chosen")


def _how_long(dropped: Sequence[Past]) -> str:
    """Return how long the steps took that were left out, which is known."""
    if not dropped:
        return ""
    longest = max(dropped, key=lambda row: row.longest_ns)
    mean_ns = sum(row.total_ns for row in dropped) / max(sum(row.steps for row in dropped), 1)
    return (
        f" Steps left out, from {min(row.first for row in dropped)} to "
        f"{max(row.last for row in dropped)}, took {duration(mean_ns)} on average, "
        f"the longest, step {longest.longest}, {duration(longest.longest_ns)}."
    )
