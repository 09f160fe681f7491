"""The recordings of a trace folder, and the sentences for those that cannot be read."""

from __future__ import annotations

import struct
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tracelens.errors import EmptyTrace, NewerVersion, NotATrace, TraceLensError, TraceNotFound
from tracelens.model import fmt
from tracelens.model.fmt import shown_name
from tracelens.schema.rules import add_counts
from tracelens.schema.vocabulary import (
    ELSEWHERE_SUFFIX,
    NO_ROOM,
    SEGMENTS_SUFFIX,
    TRACE_SUFFIX,
    parse_stem,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tracelens.model.choice import Choice
    from tracelens.schema.side import SideTables

UNFINISHED: Final = (SEGMENTS_SUFFIX, ELSEWHERE_SUFFIX)
# Errors that damaged input makes pyarrow, its C++ library and our own decoding raise.
DAMAGE: Final = (
    *(TraceLensError, OSError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError),
    *(struct.error, pa.ArrowException),
)


def list_recordings(path: Path) -> list[Path]:
    """List files and segment folders; segments whose conversion is done are left out."""
    if path.is_file() or path.name.endswith(SEGMENTS_SUFFIX):
        return [path] if path.name.endswith((TRACE_SUFFIX, *UNFINISHED)) else []
    try:
        entries = sorted(path.iterdir(), key=attrgetter("name"))
    except OSError:
        return []
    visible_entries = [entry for entry in entries if not entry.name.startswith(".")]
    file_names = [entry.name for entry in visible_entries if entry.name.endswith(TRACE_SUFFIX)]
    converted_stems = {name.removesuffix(TRACE_SUFFIX) for name in file_names}
    return [
        entry
        for entry in visible_entries
        if entry.name.endswith(TRACE_SUFFIX)
        or (entry.name.endswith(UNFINISHED) and entry.stem not in converted_stems)
    ]


def select_recordings(files: Iterable[Path], choice: Choice) -> list[Path]:
    """Leave out the recordings of workers whose rank, by their names, is not wanted."""
    return [file for file in files if all(map(choice.has_rank, parse_ranks_of_names([file])))]


def parse_ranks_of_names(files: Iterable[Path]) -> set[int]:
    """Return the ranks of the workers that some recordings are named after."""
    stems = (parse_stem(file.name.removesuffix(ELSEWHERE_SUFFIX)) for file in files)
    return {rank for role, rank, _ in filter(None, stems) if role == "worker"}


def describe_left_out(path: Path, error: Exception) -> str:
    """Return one sentence on a file that was left out, with the reason."""
    return f"'{shown_name(path.name)}' was left out: {read_first_line(error)}."


def read_first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its kind."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def build_vanished_error(path: Path) -> TraceNotFound:
    """Build the error for a trace that was there a moment ago."""
    return TraceNotFound(
        f"Nothing is left in '{shown_name(path)}': its recordings were there when it was opened, and "
        "have been moved or removed since; open it where it is now."
    )


def build_refusal(path: Path, problems: list[tuple[Path, Exception]]) -> TraceLensError:
    """Build the error for a path without any readable recording."""
    newer_version = next((error for _, error in problems if isinstance(error, NewerVersion)), None)
    file, error = problems[0]
    first_problem = describe_left_out(file, newer_version or error).removesuffix(".")
    error_type = NewerVersion if newer_version else NotATrace
    return error_type(
        f"None of the {len(problems)} recordings in '{shown_name(path)}' can be read; the first: "
        f"{first_problem}."
    )


def build_no_events_error(path: Path, sides: Sequence[SideTables]) -> EmptyTrace:
    """Build the error for a trace without an event, whose processes have these side tables."""
    lost_by_reason: dict[str, int] = {}
    for side in sides:
        lost_by_reason = add_counts(lost_by_reason, side.dropped)
    lost_for_room_count = lost_by_reason.pop(NO_ROOM, 0)
    losses_text = ", ".join(f"{n:,} for {reason}" for reason, n in lost_by_reason.items() if n)
    explanation = "check that the recorded program did any work after tl.start()."
    if lost_for_room_count:
        explanation = (
            "the disk was full or could not be written when it was recorded "
            f"({fmt.count(lost_for_room_count, 'event')} lost for that): free some room, or record "
            "elsewhere with --out."
        )
    elif losses_text:
        explanation = f"all events were left out: {losses_text}."
    failed_sides = [side for side in sides if side.endings]
    if failed_sides:
        first_failed = min(failed_sides, key=lambda side: side.endings[0].at_ns)
        ending, rank = first_failed.endings[0], first_failed.process.rank
        message, frame = ending.message, ending.user_frame
        explanation = (
            f"rank {rank} failed before its first event: {ending.cause}"
            f"{f' ({message})' if message else ''}{f' at {frame}' if frame else ''}."
        )
    processes = fmt.count(len(sides), "recorded process", "recorded processes")
    return EmptyTrace(f"'{shown_name(path)}' holds {processes}, but not one event: {explanation}")
