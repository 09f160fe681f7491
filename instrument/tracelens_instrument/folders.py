"""A segments folder that nobody else has, in the trace folder or, with a note there, on this host."""

from __future__ import annotations

import itertools
import os

from tracelens.schema.light import dataclass
from tracelens.schema.ownership import MARKER_FILE, mark
from tracelens.schema.vocabulary import ELSEWHERE_SUFFIX, SEGMENTS_SUFFIX, TRACE_SUFFIX, stem
from tracelens_instrument.failures import Tolerated
from tracelens_instrument.placement import local_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens_instrument.identity import Identity

__all__ = ["Place", "give_up", "new_folder"]


@dataclass(frozen=True)
class Place:
    """A segments folder, and the note in the trace folder that tells of it if it lies elsewhere."""

    folder: Path
    note: Path | None = None


def new_folder(directory: Path, who: Identity, pid: int) -> Place:
    """Make a segments folder.

    Raises:
        OSError: neither the trace folder nor a place of this host can be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    local = local_place(directory)
    for name in _names(who, pid):
        if any((directory / f"{name}{suffix}").exists() for suffix in _TAKEN):
            continue
        try:
            place = _here(directory, name) if local is None else _there(local, directory, name)
        except FileExistsError:
            continue
        with Tolerated(OSError):  # on a full disk; readers leave its segments where they are, then
            mark(place.folder, directory)
        return place
    raise FileExistsError(f"{directory} holds a thousand recordings of process {pid}")


def give_up(place: Place) -> None:
    """Remove a folder in which nothing could be written."""
    with Tolerated(OSError):
        (place.folder / MARKER_FILE).unlink(missing_ok=True)
        place.folder.rmdir()
        if place.note is not None:
            place.folder.parent.rmdir()
            place.note.unlink(missing_ok=True)


_TAKEN = (TRACE_SUFFIX, ELSEWHERE_SUFFIX, SEGMENTS_SUFFIX)


def _names(who: Identity, pid: int) -> Iterator[str]:
    """Give names to try: a pid may come again, after a restart or in a second run."""
    for number in itertools.chain([pid], (pid * 1000 + again for again in range(1, 1000))):
        yield stem(who.role, who.rank, number)


def _here(directory: Path, name: str) -> Place:
    folder = directory / f"{name}{SEGMENTS_SUFFIX}"
    folder.mkdir()
    return Place(folder)


def _there(local: Path, directory: Path, name: str) -> Place:
    """Make the folder inside one that is ours alone, since everybody may write to ``/tmp``."""
    private = local / f"tracelens-{os.getuid()}-{os.urandom(6).hex()}"
    from tracelens.schema.elsewhere import leave_note  # noqa: PLC0415 - most record where the trace is

    note = directory / f"{name}{ELSEWHERE_SUFFIX}"
    leave_note(note, private / f"{name}{SEGMENTS_SUFFIX}")
    try:
        private.mkdir(mode=0o700)
        return Place(_here(private, name).folder, note)
    except OSError:
        note.unlink(missing_ok=True)
        raise
