"""The side file of a live recording: whole lines, appended one `write` each."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tracelens.schema.vocabulary import SIDE_FILE
from tracelens_instrument.failures import warn_once

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SideFile"]


class SideFile:
    """Appends lines; a line that does not fit waits for the next attempt."""

    def __init__(self, folder: Path) -> None:
        """Create the file, exclusively.

        Raises:
            OSError: it cannot be created.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._descriptor: int | None = os.open(folder / SIDE_FILE, flags, 0o644)
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
        whole = b"\n" + line if self._torn else line
        try:
            self._torn = os.write(self._descriptor, whole) < len(whole)
        except OSError as error:
            warn_once(f"the side file of the recording cannot be written: {error.strerror}")
            return False
        return not self._torn

    def close(self) -> None:
        """Close it; later lines go nowhere."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
