"""From a trace folder to a `Trace` that analyses can use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.errors import EmptyTrace, NotATrace, TraceNotFound
from tracelens.readers import READERS
from tracelens.transforms import DEFAULT_TRANSFORMS

if TYPE_CHECKING:
    import os

    from tracelens.readers.base import Progress
    from tracelens.trace import Trace


def open(path: str | os.PathLike[str], progress: Progress | None = None) -> Trace:  # noqa: A001 - reads as tracelens.open
    """Read a trace and prepare it; `progress` is called with (done, total) processes.

    Raises:
        TraceNotFound: there is nothing at `path`.
        UnusableInput: there is, but nothing of it can be read.
    """
    place = Path(path)
    if not place.exists():
        raise TraceNotFound(
            f"There is no '{place}': expected a trace folder; "
            "record one with 'tracelens record -- COMMAND'."
        )
    for reader in READERS:
        if reader.sniff(place):
            return prepare(reader.read(place, progress))
    raise _unknown(place)


def prepare(trace: Trace) -> Trace:
    """Apply the default transforms: one clock, steps, matched collectives."""
    for transform in DEFAULT_TRANSFORMS:
        trace = transform(trace)
    return trace


def _unknown(place: Path) -> NotATrace | EmptyTrace:
    if place.is_file():
        return NotATrace(
            f"'{place}' is not a trace that TraceLens reads: expected a trace folder or an .arrow "
            "file of one."
        )
    inner = sorted(entry.name for entry in place.iterdir() if _holds_recordings(entry))
    advice = (
        f"it holds {len(inner)} trace folders, open one of them, for example '{place / inner[-1]}'"
        if inner
        else "record into it with 'tracelens record --out DIR -- COMMAND'"
    )
    return EmptyTrace(
        f"'{place}' holds no recorded process (expected files such as worker-00000-4242.arrow): "
        f"{advice}."
    )


def _holds_recordings(entry: Path) -> bool:
    return entry.is_dir() and any(reader.sniff(entry) for reader in READERS)
