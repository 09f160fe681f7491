"""Notes on recorded processes that need none of their events, and which process is its rank's main one.

Notes list what each recording lacks, and what the user asked to leave out, so that it is not taken for
all that happened.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tracelens.model.fmt import duration
from tracelens.model.notes import Note
from tracelens.schema.vocabulary import OUTDATED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.schema.side import Past, Process, SideTables


def order_of(process: Process) -> tuple[bool, int, int, int]:
    """Return the sort key of processes: role (workers first), rank and age."""
    return (process.role == "ps", process.rank, process.incarnation, process.pid)


def choose_main(rows: Sequence[dict[str, Any]]) -> list[Note]:
    """Mark in rows of processes the main one of each rank; return notes on ranks that had several.

    It is the latest with steps, of equally old ones that with more events; never a child of a rank. Each
    row has `stepped` and `child` and the columns of `Trace.processes`.
    """
    rows_of_rank: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        row["main"] = False
        if not row["child"]:
            rows_of_rank.setdefault((row["role"], row["rank"]), []).append(row)
    notes = []
    for (role, rank), candidates in sorted(rows_of_rank.items()):
        main = max(candidates, key=lambda row: (row["stepped"], row["incarnation"], row["events"]))
        main["main"] = True
        run_count = sum(row["stepped"] for row in candidates)
        if run_count > 1:
            subject = "Rank" if role == "worker" else "Parameter server"
            sentence = (
                f"{subject} {rank} was recorded {run_count} times: the latest with steps, process "
                f"{main['pid']}, stands for it, the others are kept apart."
            )
            notes.append(Note(file="", sentence=sentence, kind="restarted"))
    return notes


def process_notes(
    file: str,
    side: SideTables,
    events: int,
    lost: dict[str, int],
    *,
    cut: bool,
    running: bool = False,
) -> list[Note]:
    """Return notes on what the recording of a process lacks.

    Args:
        file: Its name.
        side: Its side tables.
        events: Number of its events.
        lost: Events that were lost without having been asked for, by reason.
        cut: The end of the file is missing.
        running: Its process still writes to it.
    """
    notes = []
    if cut:
        sentence = f"'{file}' is damaged or cut off: its first {events} events are used."
        notes.append(Note(file, sentence, "truncated"))
    elif running:
        sentence = f"'{file}' is still being recorded: its {events} events up to now are used."
        notes.append(Note(file, sentence, "running"))
    elif not side.complete:
        cause = next((one.cause for one in side.endings if one.thread is None), None)
        reason = f"ended by {cause}" if cause else "killed, or still running"
        sentence = (
            f"'{file}' did not end its recording itself ({reason}): "
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
    """Return notes on what was left out as asked: by recordings, and by a conversion of them.

    Processes with the same options have one note.
    """
    thinned: Counter[tuple[int, int]] = Counter()
    outdated: Counter[int] = Counter()
    past_of_option: dict[int, list[Past]] = {}
    for side in sides:
        retention = side.retention
        if retention.every is not None:
            thinned[retention.every, retention.burst] += sum(side.thinned.values())
        if retention.last is not None:
            outdated[retention.last] += side.dropped.get(OUTDATED, 0)
            past_of_option.setdefault(retention.last, []).extend(side.past)
    sentences = [
        *(_thinned_sentence(*option, count) for option, count in thinned.items()),
        *(
            _outdated_sentence(last, count, past_of_option[last])
            for last, count in outdated.items()
            if count
        ),
        *dict.fromkeys(sentence for side in sides for sentence in side.notes),
    ]
    return [Note("", sentence, "chosen") for sentence in sentences]


def _thinned_sentence(every: int, burst: int, count: int) -> str:
    return (
        f"As asked, {burst} of every {every} steps have all their events; of the others {count:,} were "
        "left out. Steps and phases are whole in all of them, so shares of time are of the whole run; "
        "counts of spans and calls are not."
    )


def _outdated_sentence(last: int, count: int, past: Sequence[Past]) -> str:
    sentence = (
        f"As asked, only the last {last} steps were kept, and those that were marked: {count:,} older "
        "events were left out. The time between marked steps and the last ones counts nowhere: shares "
        "of time, and efficiency, are of the steps that are here."
    )
    if not past:
        return sentence
    longest = max(past, key=lambda row: row.longest_ns)
    mean_ns = sum(row.total_ns for row in past) / max(sum(row.steps for row in past), 1)
    return (
        f"{sentence} Steps left out, from {min(row.first for row in past)} to "
        f"{max(row.last for row in past)}, took {duration(mean_ns)} on average, "
        f"the longest, step {longest.longest}, {duration(longest.longest_ns)}."
    )
