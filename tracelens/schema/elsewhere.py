"""A note in the trace folder that says where a process's live segments lie: on its own host.

Where the trace folder is on a network file system, segments are recorded on a disk of the host, and only
the Arrow file is written to the trace folder, when recording has ended. The note is one JSON object.
"""

from __future__ import annotations

import os

from tracelens.errors import NotATrace, TraceNotFound
from tracelens.schema.host import host_name
from tracelens.schema.light import asdict, dataclass
from tracelens.schema.light_json import dumps, loads
from tracelens.schema.light_path import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

__all__ = ["Elsewhere", "find_segments", "leave_note", "read_note"]

_MOST_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class Elsewhere:
    """Where segments lie: the host, and the path of the folder on it."""

    host: str
    path: str


def leave_note(note: Path, folder: Path) -> None:
    """Say in the new file `note` that the segments are in `folder` on this host.

    Raises:
        FileExistsError: there is such a file.
        OSError: it cannot be written.
    """
    text = dumps(asdict(Elsewhere(host_name(), str(folder)))) + "\n"
    descriptor = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def read_note(note: Path) -> Elsewhere:
    """Read a note.

    Raises:
        NotATrace: it does not say what a note says.
    """
    try:
        with note.open("rb") as file:
            row = loads(file.read(_MOST_BYTES))
        return Elsewhere(str(row["host"]), str(row["path"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotATrace(f"it does not say where its segments lie ({error!r})") from error


def find_segments(note: Path) -> Path:
    """Return the segments folder that a note speaks of.

    Raises:
        NotATrace: it does not say what a note says.
        TraceNotFound: the folder is on another host, or gone.
    """
    told = read_note(note)
    folder = Path(told.path)
    if folder.is_dir():
        return folder
    if told.host != host_name():
        raise TraceNotFound(
            f"its events are still on host {told.host}, in {told.path}: they come here when its "
            "process ends, or when 'tracelens info' reads this trace there"
        )
    raise TraceNotFound(f"its events were on this host, in {told.path}, and are not there any more")
