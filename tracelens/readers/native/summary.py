"""Summaries of the files of a trace folder, mostly without reading their events.

A file of schema 2 has a summary at its end. Of any other file (schema 1, its end is missing or damaged)
the few columns are read from which the same can be counted. One file is open at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracelens import containment
from tracelens.conversion.arrow_file import read_samples
from tracelens.conversion.tally import TALLIED, Tally
from tracelens.errors import NotATrace
from tracelens.model.fmt import shown_name
from tracelens.model.notes import Note
from tracelens.readers.links import check_inside
from tracelens.readers.native.arrow_file import read_arrow, read_end
from tracelens.readers.native.process_notes import (
    choose_main,
    find_last_wall_ns,
    note_process_losses,
    note_retention,
    process_sort_key,
)
from tracelens.readers.native.recordings import (
    DAMAGE,
    UNFINISHED,
    build_no_events_error,
    build_refusal,
    build_vanished_error,
    describe_left_out,
    list_recordings,
)
from tracelens.readers.native.side_checks import check_side
from tracelens.readers.native.soundness import ALWAYS_READ, is_sound
from tracelens.schema.rules import add_counts
from tracelens.schema.vocabulary import CHOSEN_LOSSES, SAMPLES_FOLDER, TRACE_SUFFIX

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from tracelens.readers.base import Progress
    from tracelens.schema.side import SideTables, Summary


class FileFacts(NamedTuple):
    """What one file holds."""

    file_name: str
    side_tables: SideTables
    summary: Summary
    lost_by_reason: dict[str, int]  # numbers of events, but for those that were to be left out
    is_cut: bool = False  # the end of the file is missing, or a part of it is damaged


def is_finished(path: Path) -> bool:
    """Return True if a path is a trace folder, or a file of one, without unfinished recordings."""
    files = list_recordings(path)
    return bool(files) and not any(file.name.endswith(UNFINISHED) for file in files)


def read_summaries(
    path: Path, progress: Progress | None = None
) -> tuple[list[FileFacts], tuple[Note, ...]]:
    """Return the summary of each file, and notes on those that cannot be read.

    Args:
        path: A trace folder, or a file of one, in which nothing is recorded any more.
        progress: Called with (done, total) files.

    Returns:
        The files by role (workers first), rank and age, as processes of a `Trace` are; and the notes.

    Raises:
        UnusableInput: nothing of it can be read, or no process has recorded an event.
    """
    containment.announce_run(path)
    with containment.limit_cpu_meanwhile():
        return _summaries(path, progress)


def _summaries(path: Path, progress: Progress | None) -> tuple[list[FileFacts], tuple[Note, ...]]:
    """Return the facts of each file, in the order of processes, and notes on unreadable files."""
    files = list_recordings(path)
    folder = None if path in files else path  # a file that was named itself may be a link
    file_facts: list[FileFacts] = []
    problems: list[tuple[Path, Exception]] = []
    for done_count, file in enumerate(files, 1):
        try:
            file_facts.append(_read_facts(file, folder))
        except DAMAGE as error:
            if isinstance(error, MemoryError):
                containment.end_out_of_memory()
            problems.append((file, error))
        if progress:
            progress(done_count, len(files))
    if not file_facts:
        raise build_refusal(path, problems) if problems else build_vanished_error(path)
    if not any(facts.summary.rows for facts in file_facts):
        raise build_no_events_error(path, [facts.side_tables for facts in file_facts])
    notes = tuple(
        Note(shown_name(file.name), describe_left_out(file, error)) for file, error in problems
    )
    return sorted(file_facts, key=lambda facts: process_sort_key(facts.side_tables.process)), notes


def find_main_processes(files: list[FileFacts]) -> tuple[list[bool], list[Note]]:
    """Return True for the main process of each rank, and notes on ranks that had several."""
    rows: list[dict[str, Any]] = [
        {
            **{
                n: getattr(facts.side_tables.process, n)
                for n in ("role", "rank", "pid", "incarnation")
            },
            "events": facts.summary.rows,
            "stepped": "step" in facts.summary.kinds,
            "child": facts.side_tables.process.parent_rank_pid is not None,
            "ended_wall_ns": find_last_wall_ns(facts.side_tables, facts.summary.last_ns),
        }
        for facts in files
    ]
    notes = choose_main(rows)
    return [row["main"] for row in rows], notes


def note_lacking_parts(files: list[FileFacts]) -> list[Note]:
    """Return notes on what recordings lack, as far as summaries and side tables tell."""
    notes = [
        note
        for file_name, side, summary, lost_by_reason, is_cut in files
        for note in note_process_losses(
            file_name, side, summary.rows, lost_by_reason, is_cut=is_cut
        )
    ]
    return [*notes, *note_retention([facts.side_tables for facts in files])]


def count_sampled_processes(path: Path, files: list[FileFacts]) -> int:
    """Count the processes with samples of their stacks."""
    folder = path.parent if path.is_file() else path
    names = {facts.file_name for facts in files}
    sample_files = (folder / SAMPLES_FOLDER).glob(f"*{TRACE_SUFFIX}")
    known_files = [file for file in sample_files if shown_name(file.name) in names]
    return sum(_has_samples(file, folder) for file in known_files)


def _has_samples(file: Path, folder: Path) -> bool:
    try:
        check_inside(file, folder)
        return any(batch.num_rows for batch in read_samples(file))
    except DAMAGE:
        return False


def _read_facts(file: Path, trace: Path | None) -> FileFacts:
    if trace is not None:
        check_inside(file, trace)
    if not file.is_file():
        raise NotATrace("it is not a file")
    end = read_end(file)
    if end is None or end.summary is None:
        return _count_events(file)
    check_side(end.side_tables)
    return FileFacts(
        shown_name(file.name),
        end.side_tables,
        end.summary,
        _drop_chosen_losses(end.side_tables.dropped),
    )


def _count_events(file: Path) -> FileFacts:
    """Make the summary of a file that has none, from the few columns that it needs."""
    recording = read_arrow(file, {*TALLIED, *ALWAYS_READ})
    side, table = recording.side_tables, recording.table
    unusable_by_reason: dict[str, int] = {}
    check_side(side)
    if not is_sound(table):
        from tracelens.readers.native.checks import (  # noqa: PLC0415 - frames, seldom needed
            find_sound_rows,
        )

        usable_rows, unusable_by_reason = find_sound_rows(table)
        table = table.take(usable_rows)
    tally = Tally()
    for batch in table.to_batches():
        tally.add_batch(batch)
    lost_by_reason = _drop_chosen_losses(add_counts(side.dropped, unusable_by_reason))
    return FileFacts(
        shown_name(file.name), side, tally.make_summary(side), lost_by_reason, recording.is_cut
    )


def _drop_chosen_losses(lost: dict[str, int]) -> dict[str, int]:
    return {reason: count for reason, count in lost.items() if reason not in CHOSEN_LOSSES}
