"""What each file of a trace folder says of itself, without reading its events.

A file of schema 2 says it at its end. Of one that does not, because its schema is 1 or its end is
missing or damaged, the few columns are read from which the same can be counted. One file is open at
a time.
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
    Recorded,
    choose_main,
    order_of,
    process_notes,
    retention_notes,
)
from tracelens.readers.native.recordings import (
    DAMAGE,
    UNFINISHED,
    left_out,
    no_events,
    recordings,
    refusal,
    vanished,
)
from tracelens.readers.native.side_checks import check_side
from tracelens.readers.native.soundness import ALWAYS_READ, is_sound
from tracelens.schema.rules import add_counts
from tracelens.schema.vocabulary import CHOSEN_LOSSES, SAMPLES_FOLDER, TRACE_SUFFIX

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    import pyarrow as pa

    from tracelens.readers.base import Progress
    from tracelens.schema.side import SideTables, Summary

__all__ = ["FileFacts", "is_finished", "main_flags", "notes_of", "sampled", "summaries"]


class FileFacts(NamedTuple):
    """What one file holds.

    `lost` counts lost events by reason, but for those that were to be left out; `cut`: the end of the
    file is missing, or a part of it is damaged.
    """

    file: str
    side: SideTables
    summary: Summary
    lost: dict[str, int]
    cut: bool = False


def is_finished(path: Path) -> bool:
    """Return whether a path is a trace folder, or a file of one, without unfinished recordings."""
    found = recordings(path)
    return bool(found) and not any(file.name.endswith(UNFINISHED) for file in found)


def summaries(
    path: Path, progress: Progress | None = None
) -> tuple[list[FileFacts], tuple[Note, ...]]:
    """Return what each file says of itself, and notes on those that cannot be read.

    Args:
        path: A trace folder, or a file of one, in which nothing is recorded any more.
        progress: Called with (done, total) files.

    Returns:
        The files by role (workers first), rank and age, as processes of a `Trace` are; and the notes.

    Raises:
        UnusableInput: nothing of it can be read, or no process has recorded an event.
    """
    containment.begin(path)
    with containment.watching():
        return _summaries(path, progress)


def _summaries(path: Path, progress: Progress | None) -> tuple[list[FileFacts], tuple[Note, ...]]:
    files = recordings(path)
    root = None if path in files else path
    found: list[FileFacts] = []
    problems: list[tuple[Path, Exception]] = []
    for done, file in enumerate(files):
        try:
            found.append(_facts(file, root))
        except DAMAGE as error:
            if isinstance(error, MemoryError):
                containment.out_of_memory()
            problems.append((file, error))
        if progress:
            progress(done + 1, len(files))
    if not found:
        raise refusal(path, problems) if problems else vanished(path)
    if not any(facts.summary.rows for facts in found):
        raise no_events(path, len(files), (facts.side.dropped for facts in found))
    notes = tuple(Note(shown_name(file.name), left_out(file, error)) for file, error in problems)
    return sorted(found, key=lambda facts: order_of(facts.side.process)), notes


def main_flags(found: list[FileFacts]) -> tuple[list[bool], list[Note]]:
    """Return which processes stand for their rank, and notes on ranks that had several."""
    rows: list[dict[str, Any]] = [
        {
            "role": facts.side.process.role,
            "rank": facts.side.process.rank,
            "pid": facts.side.process.pid,
            "incarnation": facts.side.process.incarnation,
            "events": facts.summary.rows,
            "stepped": "step" in facts.summary.kinds,
            "child": facts.side.process.parent_rank_pid is not None,
        }
        for facts in found
    ]
    notes = choose_main(rows)
    return [row["main"] for row in rows], notes


def notes_of(found: list[FileFacts]) -> list[Note]:
    """Return notes on what recordings lack, as far as summaries and side tables tell."""
    notes = [
        note
        for facts in found
        for note in process_notes(
            Recorded(facts.file, facts.side, facts.summary.rows, facts.cut), facts.lost
        )
    ]
    return [*notes, *retention_notes([facts.side for facts in found])]


def sampled(path: Path, found: list[FileFacts]) -> int:
    """Count the processes with samples of their stacks."""
    folder = path.parent if path.is_file() else path
    names = {facts.file for facts in found}
    files = (folder / SAMPLES_FOLDER).glob(f"*{TRACE_SUFFIX}")
    return sum(_has_samples(file, folder) for file in files if shown_name(file.name) in names)


def _has_samples(file: Path, folder: Path) -> bool:
    try:
        check_inside(file, folder)
        return any(batch.num_rows for batch in read_samples(file))
    except DAMAGE:
        return False


def _facts(file: Path, trace: Path | None) -> FileFacts:
    if trace is not None:
        check_inside(file, trace)
    if not file.is_file():
        raise NotATrace("it is not a file")
    end = read_end(file)
    if end is None or end.summary is None:
        return _counted(file)
    check_side(end.side)
    return FileFacts(shown_name(file.name), end.side, end.summary, _unasked(end.side.dropped))


def _counted(file: Path) -> FileFacts:
    """Read the few columns that tell what a file holds, and which of its rows are usable."""
    recording = read_arrow(file, {*TALLIED, *ALWAYS_READ})
    check_side(recording.side)
    table, unusable = _usable(recording.table)
    tally = Tally()
    for batch in table.to_batches():
        tally.add(batch)
    lost = add_counts(recording.side.dropped, unusable)
    return FileFacts(
        shown_name(file.name),
        recording.side,
        tally.summary(recording.side),
        _unasked(lost),
        recording.cut,
    )


def _unasked(lost: dict[str, int]) -> dict[str, int]:
    return {reason: count for reason, count in lost.items() if reason not in CHOSEN_LOSSES}


def _usable(table: pa.Table) -> tuple[pa.Table, dict[str, int]]:
    """Return the usable rows, and how many are not, by reason."""
    if is_sound(table):
        return table, {}
    from tracelens.readers.native.checks import sound_rows  # noqa: PLC0415 - frames, seldom needed

    kept, unusable = sound_rows(table)
    return table.take(kept), unusable
