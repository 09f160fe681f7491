"""Notes on recorded processes that need none of their events, and which process is its rank's main one.

Notes list what each recording lacks, and what the user asked to leave out, so that it is not taken for
all that happened.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tracelens.model import fmt
from tracelens.model.notes import Note
from tracelens.schema.vocabulary import OUTDATED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.schema.side import Past, Process, SideTables


def process_sort_key(process: Process) -> tuple[bool, int, int, int]:
    """Return the sort key of processes: role (workers first), rank and age."""
    return (process.role == "ps", process.rank, process.incarnation, process.pid)


def choose_main(rows: Sequence[dict[str, Any]]) -> list[Note]:
    """Mark in rows of processes the main one of each rank; return notes on ranks that had several.

    It is the latest with steps, of equally old ones that with more events; never a child of a rank, nor
    a process of an earlier attempt that the latest one started without. Each row has the columns of
    `Trace.processes`, `stepped` (it has steps), `child` (a rank started it), and `ended_wall_ns`.
    """
    rows_by_rank: dict[tuple[str, int], list[dict[str, Any]]] = {}  # by role and rank
    for row in rows:
        row["main"] = False
        if not row["child"]:
            rows_by_rank.setdefault((row["role"], row["rank"]), []).append(row)
    has_steps = any(row["stepped"] for row in rows)  # MPI programs record calls alone
    notes = []
    main_rows: list[tuple[int, dict[str, Any]]] = []  # with how often the rank was recorded
    for (role, rank), candidates in sorted(rows_by_rank.items()):
        main_row = max(candidates, key=lambda r: (r["stepped"], r["incarnation"], r["events"]))
        main_row["main"] = True
        recorded_count = sum(
            row["stepped"] if has_steps else bool(row["events"]) for row in candidates
        )
        main_rows.append((recorded_count, main_row))
        if recorded_count > 1:
            subject = "Rank" if role == "worker" else "Parameter server"
            sentence = (
                f"{subject} {rank} was recorded {recorded_count} times: the latest"
                f"{' with steps' if has_steps else ''}, process {main_row['pid']}, stands for it, the "
                "others are kept apart."
            )
            notes.append(Note(file="", sentence=sentence, kind="restarted"))
    for row in _find_left_behind(main_rows):
        row["main"] = False
        sentence = (
            f"Rank {row['rank']} ended before the job was started again without it: its process "
            f"{row['pid']} is kept apart."
        )
        notes.append(Note(file="", sentence=sentence, kind="restarted"))
    return notes


def _find_left_behind(main_rows: Sequence[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the processes of ranks without which a job was started again.

    `main_rows` has how often each rank was recorded, and its latest process. Most of the other ranks
    must have been started again: else a single rank came back, and the job went on.
    """
    workers = [(count, row) for count, row in main_rows if row["role"] == "worker"]
    most_often = max((count for count, _ in workers), default=0)
    if most_often < 2:
        return []
    restarted_rows = [row for count, row in workers if count == most_often]
    restart_ns = min(row["incarnation"] for row in restarted_rows)
    left_rows = [
        row
        for count, row in workers
        if count < most_often
        and row["ended_wall_ns"] is not None
        and row["ended_wall_ns"] < restart_ns
    ]
    is_restart_of_job = 2 * len(restarted_rows) > len(workers) - len(left_rows)
    return left_rows if is_restart_of_job else []


def find_last_wall_ns(side: SideTables, last_ns: int | None) -> int | None:
    """Return when a process recorded its last event, ns of its host's wall time; None if unknown."""
    readings = [reading for reading in side.clocks if reading.wall_ns is not None]
    if not readings or last_ns is None:
        return None
    wall_ns = readings[-1].wall_ns
    assert wall_ns is not None
    return last_ns + wall_ns - readings[-1].monotonic_ns


def note_process_losses(
    file_name: str,
    side: SideTables,
    event_count: int,
    lost_by_reason: dict[str, int],
    *,
    is_cut: bool,
    is_running: bool = False,
) -> list[Note]:
    """Return notes on what the recording of a process lacks.

    Args:
        file_name: Its name.
        side: Its side tables.
        event_count: Number of its events.
        lost_by_reason: Events that were lost without having been asked for, by reason.
        is_cut: The end of the file is missing.
        is_running: Its process still writes to it.
    """
    notes = []
    if is_cut:
        sentence = f"'{file_name}' is damaged or cut off: its first {event_count} events are used."
        notes.append(Note(file_name, sentence, "truncated"))
    elif is_running:
        sentence = (
            f"'{file_name}' is still being recorded: its {event_count} events up to now are used."
        )
        notes.append(Note(file_name, sentence, "running"))
    elif not side.complete:
        cause = next((ending.cause for ending in side.endings if ending.thread is None), None)
        reason = f"ended by {cause}" if cause else "killed, or still running"
        sentence = (
            f"'{file_name}' did not end its recording itself ({reason}): "
            f"all {event_count} events up to then are used."
        )
        notes.append(Note(file_name, sentence, "incomplete"))
    if not event_count:
        notes.append(Note(file_name, f"'{file_name}' holds no events.", "incomplete"))
    if lost_by_reason:
        reasons = ", ".join(f"{n} for {reason}" for reason, n in sorted(lost_by_reason.items()))
        notes.append(Note(file_name, f"'{file_name}' lost events: {reasons}.", "dropped"))
    return notes


def note_retention(sides: Sequence[SideTables]) -> list[Note]:
    """Return notes on what was left out as asked: by recordings, and by a conversion of them.

    Processes with the same options have one note: `burst` of `every` steps are recorded in full, or only
    the `last` steps are kept (`past` sums up older ones).
    """
    thinned_counts: Counter[tuple[int, int]] = Counter()  # events, by `every` and `burst`
    outdated_counts: Counter[int] = Counter()  # events, by `last`
    past_steps: dict[int, list[Past]] = {}
    for side in sides:
        retention = side.retention
        if retention.every is not None:
            thinned_counts[retention.every, retention.burst] += sum(side.thinned.values())
        if retention.last is not None:
            outdated_counts[retention.last] += side.dropped.get(OUTDATED, 0)
            past_steps.setdefault(retention.last, []).extend(side.past)
    sentences = [
        *(_thinned_sentence(*options, count) for options, count in thinned_counts.items()),
        *(
            _outdated_sentence(last, count, past_steps[last])
            for last, count in outdated_counts.items()
            if count
        ),
        *_detail_sentences(sides),
        *dict.fromkeys(sentence for side in sides for sentence in side.notes),
    ]
    return [Note(file="", sentence=sentence, kind="chosen") for sentence in sentences]


def describe_detail(level: str | None, sampling_hz: int | None) -> str:
    """Describe what was requested: ``layers and stacks (100 Hz)``; empty for nothing."""
    details = [*{"layer": ("layers",), "op": ("layers", "operators")}.get(level or "", ())]
    if sampling_hz:
        details.append(f"stacks ({sampling_hz} Hz)")
    return fmt.join_words(details) if details else ""


def _detail_sentences(sides: Sequence[SideTables]) -> list[str]:
    """Return a sentence for each detail that processes recorded for some time, on request."""
    process_counts: Counter[str] = Counter()
    for side in sides:
        own_level = side.retention.detail
        descriptions = {
            describe_detail(change.level if change.level != own_level else None, change.sampling_hz)
            for change in side.details
        }
        process_counts.update(descriptions - {""})
    return [
        f"As asked while the job ran, {fmt.count(process_count, 'process', 'processes')} recorded "
        f"{description} for some time. Steps take a little longer meanwhile."
        for description, process_count in process_counts.items()
    ]


def _thinned_sentence(every: int, burst: int, count: int) -> str:
    return (
        f"As asked, {burst} of every {every} steps have all their events; of the others {count:,} were "
        "left out. Steps and phases are whole in all of them, so shares of time are of the whole run; "
        "counts of spans and calls are not."
    )


def _outdated_sentence(kept_steps: int, dropped_count: int, past_steps: Sequence[Past]) -> str:
    """Return a sentence on older steps that were dropped as asked; `past_steps` sum them up in parts."""
    sentence = (
        f"As asked, only the last {kept_steps} steps were kept, and those that were marked: "
        f"{dropped_count:,} older events were left out. The time between marked steps and the last "
        "ones counts nowhere: shares of time, and efficiency, are of the steps that are here."
    )
    if not past_steps:
        return sentence
    longest_range = max(past_steps, key=lambda step_range: step_range.longest_ns)
    step_count = sum(step_range.steps for step_range in past_steps)
    mean_ns = sum(step_range.total_ns for step_range in past_steps) / max(step_count, 1)
    return (
        f"{sentence} Steps left out, from {min(step_range.first for step_range in past_steps)} to "
        f"{max(step_range.last for step_range in past_steps)}, took {fmt.duration(mean_ns)} on average, "
        f"the longest, step {longest_range.longest}, {fmt.duration(longest_range.longest_ns)}."
    )
