"""What is known of recorded processes without their events: what they lack, and who stands for a rank.

Notes list what each recording lacks, and what the user asked to leave out, so that it is not taken for
all that happened.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from tracelens.model.fmt import duration
from tracelens.model.notes import Note
from tracelens.schema.vocabulary import OUTDATED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracelens.schema.side import Past, Process, Retention, SideTables

__all__ = [
    "Recorded",
    "choose_main",
    "order_of",
    "process_notes",
    "retention_notes",
]


class Recorded(NamedTuple):
    """A recording: its file's name, side tables, number of events.

    `cut`: the end of the file is missing; `running`: its process still writes to it.
    """

    file: str
    side: SideTables
    events: int
    cut: bool = False
    running: bool = False


def order_of(process: Process) -> tuple[bool, int, int, int]:
    """Return what processes are sorted by: role (workers first), rank and age."""
    return (process.role == "ps", process.rank, process.incarnation, process.pid)


def choose_main(rows: Sequence[dict[str, Any]]) -> list[Note]:
    """Mark in rows of processes the main one of each rank; return notes on ranks that had several.

    It is the latest with steps, of equally old ones that with more events; never a child of a rank. Each
    row has `stepped` and `child` beside the columns of `Trace.processes`.
    """
    by_rank: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        row["main"] = False
        if not row["child"]:
            by_rank.setdefault((row["role"], row["rank"]), []).append(row)
    notes = []
    for claimed in (by_rank[rank] for rank in sorted(by_rank)):
        main = max(claimed, key=lambda row: (row["stepped"], row["incarnation"], row["events"]))
        main["main"] = True
        ran = sum(row["stepped"] for row in claimed)
        if ran > 1:
            notes.append(_restart(main, ran))
    return notes


def _restart(row: dict[str, Any], ran: int) -> Note:
    subject = "Rank" if row["role"] == "worker" else "Parameter server"
    sentence = (
        f"{subject} {row['rank']} was recorded {ran} times: the latest with steps, process "
        f"{row['pid']}, stands for it, the others are kept apart."
    )
    return Note(file="", sentence=sentence, kind="restarted")


def process_notes(found: Recorded, lost: dict[str, int]) -> list[Note]:
    """Return notes on what this process's recording lacks; `lost` are events by reason, unasked."""
    file, events, notes = found.file, found.events, []
    if found.cut:
        sentence = f"'{file}' is damaged or cut off: its first {events} events are used."
        notes.append(Note(file, sentence, "truncated"))
    elif found.running:
        sentence = f"'{file}' is still being recorded: its {events} events up to now are used."
        notes.append(Note(file, sentence, "running"))
    elif not found.side.complete:
        sentence = (
            f"'{file}' did not end its recording itself (killed, or still running): "
            f"all {events} events up to then are used."
        )
        notes.append(Note(file, sentence, "incomplete"))
    if not events:
        notes.append(Note(file, f"'{file}' holds no events.", "incomplete"))
    if lost:
        reasons = ", ".join(f"{count} for {reason}" for reason, count in sorted(lost.items()))
        notes.append(Note(file, f"'{file}' lost events: {reasons}.", "dropped"))
    return notes


def retention_notes(sides: Sequence[SideTables]) -> list[Note]:
    """Return notes on what was left out as asked: by recordings, and by a conversion of them."""
    converted = dict.fromkeys(sentence for side in sides for sentence in side.notes)
    return [*_kept_steps(sides), *(Note("", sentence, "chosen") for sentence in converted)]


def _kept_steps(sides: Iterable[SideTables]) -> list[Note]:
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
