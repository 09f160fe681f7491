"""Joins the recordings of single processes into one `Trace`.

Notes list what each lacks, and what the user asked to leave out, so that it is not taken for all
that happened.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pyarrow as pa

from tracelens.errors import NotATrace, TraceLensError
from tracelens.model.events import Source
from tracelens.model.fmt import duration, shown_name
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
from tracelens.readers.native.checks import ALWAYS_READ, usable_columns, usable_events
from tracelens.schema.vocabulary import CHOSEN_LOSSES, OUTDATED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from tracelens.model.columns import Columns
    from tracelens.model.outline import Outline
    from tracelens.schema.side import Past, Retention, SideTables


UNUSABLE: Final = "unusable values"
# Needed to choose the main processes, and not kept.
_EXTRA: Final[dict[str, pl.DataType]] = {"steps": pl.Int64(), "child": pl.Boolean()}


@dataclass(frozen=True)
class Part:
    """What one file holds: its events in outline, how many are not usable, and side tables.

    `cut`: the end of the file is missing; `running`: its process still writes to it. `table` holds the
    events themselves where there is no file to read them from again.
    """

    file: str
    side: SideTables
    outline: Outline
    path: Path
    table: pa.Table | None = None
    unusable: int = 0
    cut: bool = False
    running: bool = False


def assemble(parts: list[Part], notes: Iterable[Note] = ()) -> Trace:
    """Build the trace; processes are ordered by role (workers first), rank and age."""
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
    source = Source({index: _recorded(index, part) for index, part in enumerate(parts)})
    return Trace.of(
        source,
        outlines={index: part.outline for index, part in enumerate(parts)},
        processes=processes.select(*PROCESS_COLUMNS),
        communicators=_communicators(parts),
        threads=_rows(parts, "threads", THREAD_COLUMNS, thread="index"),
        clocks=_rows(parts, "clocks", CLOCK_COLUMNS),
        notes=(*all_notes, *_chosen_notes([part.side for part in parts]), *restarts),
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

    def columns(self, names: Sequence[str]) -> Columns:
        """Read some columns; more may come with them.

        Raises:
            UnusableInput: the file cannot be read (any more).
        """
        return usable_columns(self._read({*names, *ALWAYS_READ}))[0]

    def frame(self) -> pl.DataFrame:
        """Read all columns.

        Raises:
            UnusableInput: the file cannot be read (any more).
        """
        events, _ = usable_events(self._read(None))
        owner = {"process": self.process, "rank": self.rank, "role": self.role}
        return events.with_columns(
            pl.lit(value, EVENT_COLUMNS[name]).alias(name) for name, value in owner.items()
        )

    def alone(self) -> RecordedPart:
        """Return it as it is: it shares nothing."""
        return self

    def _read(self, names: Collection[str] | None) -> Recording:
        if self.table is not None:
            return Recording(self.table, self.side)
        try:
            found = read_arrow(self.path, names)
        except (TraceLensError, OSError, ValueError, pa.ArrowException) as error:
            raise NotATrace(
                f"'{shown_name(self.path)}' could be read a moment ago and cannot any more "
                f"({error}): open the trace again."
            ) from error
        return Recording(found.table, self.side, found.cut)


def _order(part: Part) -> tuple[bool, int, int, int]:
    process = part.side.process
    return (process.role == "ps", process.rank, process.incarnation, process.pid)


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
        "steps": found.of_steps,
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
    file, rows, notes = part.file, part.outline.rows, []
    if part.cut:
        sentence = f"'{file}' is damaged or cut off: its first {rows} events are used."
        notes.append(Note(file, sentence, "truncated"))
    elif part.running:
        sentence = f"'{file}' is still being recorded: its {rows} events up to now are used."
        notes.append(Note(file, sentence, "running"))
    elif not part.side.complete:
        sentence = (
            f"'{file}' did not end its recording itself (killed, or still running): "
            f"all {rows} events up to then are used."
        )
        notes.append(Note(file, sentence, "incomplete"))
    if not rows:
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
