"""Which folders TraceLens made: reading a trace writes, moves and deletes nothing in any other.

A folder that TraceLens makes gets a marker file with the folder's own inode number. A folder that was
copied, or unpacked from an archive, has another inode, so its marker proves nothing; nor does that of a
folder of another user, or one that is reached through a link.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Final

MARKER_FILE: Final = ".tracelens"
NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

_FORMAT: Final = "tracelens.folder/1"
_MOST_BYTES: Final = 1 << 10


def mark(folder: Path, trace: Path | None = None) -> None:
    """Write the marker of a folder that was made just now; `trace` is the folder that it belongs to.

    Raises:
        OSError: the marker exists, or cannot be written.
    """
    inodes = [os.lstat(folder).st_ino, 0 if trace is None else trace.stat().st_ino]
    text = " ".join([_FORMAT, *map(str, inodes)]) + "\n"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    descriptor = os.open(folder / MARKER_FILE, flags, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def is_ours(folder: Path) -> bool:
    """Return True if TraceLens, run by this user, made this very folder."""
    return _read_proved_inode(folder) is not None


def belongs_to(folder: Path, trace: Path) -> bool:
    """Return True if TraceLens, run by this user, made a folder for this very trace folder."""
    try:
        return _read_proved_inode(folder) == trace.stat().st_ino
    except OSError:
        return False


def _read_proved_inode(folder: Path) -> int | None:
    """Return the inode of the trace that a folder belongs to, 0 if to none; None without proof."""
    try:
        state = os.lstat(folder)
        descriptor = os.open(folder / MARKER_FILE, os.O_RDONLY | NO_LINK)
        try:
            is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            fields = os.read(descriptor, _MOST_BYTES).split() if is_regular else []
        finally:
            os.close(descriptor)
        name, inode, trace_inode = fields
        is_proved = name == _FORMAT.encode() and int(inode) == state.st_ino and _is_mine(state)
        return int(trace_inode) if is_proved else None
    except (OSError, ValueError):
        return None


def _is_mine(state: os.stat_result) -> bool:
    user = os.geteuid() if hasattr(os, "geteuid") else state.st_uid
    return stat.S_ISDIR(state.st_mode) and state.st_uid == user
