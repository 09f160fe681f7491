"""The side file of a live recording: whole lines, appended one `write` each."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING, Final

from tracelens.schema.vocabulary import SIDE_FILE
from tracelens_instrument.failures import warn_once

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SideFile"]

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_BLOCK: Final = 1 << 12
_RESERVE: Final = 16 * _BLOCK


class SideFile:
    """Appends lines; a line that does not fit waits for the next attempt.

    It holds a little room in reserve, so that also on a full disk it can be said what was lost.
    """

    def __init__(self, folder: Path) -> None:
        """Create the file, exclusively.

        Raises:
            OSError: it cannot be created.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._descriptor: int | None = os.open(folder / SIDE_FILE, flags, 0o644)
        self._reserve = _Reserve(folder)
        self.size = 0
        self._waiting: list[bytes] = []
        self._torn = False

    def append(self, line: bytes) -> None:
        """Append a line; never raises."""
        lines, self._waiting = [*self._waiting, line], []
        for at, each in enumerate(lines):
            if not self._write(each):
                self._waiting = lines[at:] + self._waiting
                return

    def _write(self, line: bytes) -> bool:
        if self._descriptor is None:
            return True
        try:
            fits = self._write_once(self._descriptor, line)
            while not fits and self._reserve.give():
                fits = self._write_once(self._descriptor, line)
        except OSError as error:
            warn_once(f"the side file of the recording cannot be written: {error.strerror}")
            return False
        if not fits:
            warn_once("the side file of the recording cannot be written: there is no room")
        return fits

    def _write_once(self, descriptor: int, line: bytes) -> bool:
        """Append a line; False if there was no room for all of it.

        The part that did fit becomes a line of its own, which readers pass over.
        """
        whole = b"\n" + line if self._torn else line
        try:
            written = os.write(descriptor, whole)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            return False
        self.size += written
        self._torn = written < len(whole)
        return not self._torn

    def close(self) -> None:
        """Close it; later lines go nowhere."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
        self._reserve.close()


class _Reserve:
    """Room on the disk that is held by a file without a name, and given back block by block."""

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = None
        self._size = 0
        with contextlib.suppress(OSError):  # then there is none
            self._descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600)
            os.posix_fallocate(self._descriptor, 0, _RESERVE)
            self._size = _RESERVE

    def give(self) -> bool:
        """Make room for others; False if there is nothing left to give."""
        if self._descriptor is None or self._size == 0:
            return False
        self._size -= _BLOCK
        os.ftruncate(self._descriptor, self._size)
        return True

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
