"""Which recordings a trace folder holds, and how it is said that some, or all, cannot be read."""

from __future__ import annotations

import struct
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
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tracelens.model.choice import Choice

__all__ = [
    "DAMAGE",
    "UNFINISHED",
    "left_out",
    "named_ranks",
    "no_events",
    "reason_of",
    "recordings",
    "refusal",
    "vanished",
    "wanted",
]

UNFINISHED: Final = (SEGMENTS_SUFFIX, ELSEWHERE_SUFFIX)
# What damaged input makes pyarrow, its C++ library and our own decoding raise.
DAMAGE: Final = (
    TraceLensError,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    MemoryError,
    struct.error,
    pa.ArrowException,
)


def recordings(path: Path) -> list[Path]:
    """List files and segment folders; segments whose conversion is done are left out."""
    if path.is_file() or path.name.endswith(SEGMENTS_SUFFIX):
        return [path] if path.name.endswith((TRACE_SUFFIX, *UNFINISHED)) else []
    try:
        entries = sorted(path.iterdir(), key=_name)
    except OSError:
        return []
    visible = [entry for entry in entries if not entry.name.startswith(".")]
    files = [entry for entry in visible if entry.name.endswith(TRACE_SUFFIX)]
    converted = {file.name.removesuffix(TRACE_SUFFIX) for file in files}
    live = [
        entry
        for entry in visible
        if entry.name.endswith(UNFINISHED) and entry.stem not in converted
    ]
    return sorted(files + live, key=_name)


def wanted(files: Iterable[Path], choice: Choice) -> list[Path]:
    """Leave out the recordings of workers whose rank, by their names, is not wanted."""
    return [file for file in files if all(map(choice.has_rank, named_ranks([file])))]


def named_ranks(files: Iterable[Path]) -> set[int]:
    """Return the ranks of the workers that some recordings are named after."""
    named = (parse_stem(file.name.removesuffix(ELSEWHERE_SUFFIX)) for file in files)
    return {found[1] for found in named if found and found[0] == "worker"}


def _name(path: Path) -> str:
    return path.name


def left_out(path: Path, error: Exception) -> str:
    """Return one sentence on which file was left out and why."""
    return f"'{shown_name(path.name)}' was left out: {reason_of(error)}."


def reason_of(error: Exception) -> str:
    """Return the first line of what an error says, or its kind."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def vanished(path: Path) -> TraceNotFound:
    """Build the error for a trace that was there a moment ago."""
    return TraceNotFound(
        f"Nothing is left in '{shown_name(path)}': its recordings were there when it was opened, and "
        "have been moved or removed since; open it where it is now."
    )


def refusal(path: Path, problems: list[tuple[Path, Exception]]) -> TraceLensError:
    """Build the error for a path of which nothing can be read."""
    newer = next((error for _, error in problems if isinstance(error, NewerVersion)), None)
    file, error = problems[0]
    first = left_out(file, newer or error).removesuffix(".")
    kind = NewerVersion if newer else NotATrace
    count = len(problems)
    return kind(
        f"None of the {count} recordings in '{shown_name(path)}' can be read; the first: {first}."
    )


def no_events(path: Path, count: int, lost: Iterable[Mapping[str, int]]) -> EmptyTrace:
    """Build the error for a trace of so many processes without an event; `lost` says what each lost."""
    counts: dict[str, int] = {}
    for reasons in lost:
        counts = add_counts(counts, reasons)
    without_room = counts.pop(NO_ROOM, 0)
    listed = ", ".join(f"{count:,} for {reason}" for reason, count in counts.items() if count)
    why = (
        "the disk was full or could not be written when it was recorded "
        f"({fmt.count(without_room, 'event')} lost for that): free some room, or record elsewhere "
        "with --out."
        if without_room
        else f"all events were left out: {listed}."
        if listed
        else "check that the recorded program did any work after tl.start()."
    )
    processes = fmt.count(count, "recorded process", "recorded processes")
    return EmptyTrace(f"'{shown_name(path)}' holds {processes}, but not one event: {why}")
