"""The process that turns a training's full segments into Arrow; `conversion` starts it.

It hears from the training, through its standard input, how far segments are full, and sleeps between.
When the training ends its recording, or ends in any way, it converts the rest and ends, too. It
is last in line for processor, disk and memory. Whatever fails here leaves the segments as they are.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from pathlib import Path
from typing import Final, NamedTuple

from tracelens.conversion.incremental import IncrementalConversion
from tracelens.conversion.lock import locked
from tracelens.conversion.segments import finish, folder_of, is_live
from tracelens.errors import TraceLensError
from tracelens.schema.vocabulary import SIDE_FILE

__all__ = ["main"]

_LOOK_EVERY_MS: Final = 5000  # at a training that cannot be watched; and how long dying may take
_READ: Final = 1 << 16


def main() -> None:
    """Convert the recording, of the process with the pid, that the command line names."""
    recording_path, pid = Path(sys.argv[1]), int(sys.argv[2])
    _detach()
    with contextlib.suppress(OSError, ValueError, TraceLensError):
        _serve(recording_path, _Training(recording_path, pid))


def _detach() -> None:
    """Close everything inherited from the training."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir("/")


def _serve(recording_path: Path, training: _Training) -> None:
    folder = folder_of(recording_path)
    with locked(folder / SIDE_FILE), IncrementalConversion(folder) as converting:
        while not (news := training.listen()).over:
            while converting.advance(news.full):
                pass
            if news.disconnected:
                return
        finish(converting, recording_path)


class _Report(NamedTuple):
    """Segments before number `full` are full; the recording is `over`; nothing more will be heard."""

    full: int = 0
    over: bool = False
    disconnected: bool = False


class _Training:
    """The recording process, as it shows from outside."""

    def __init__(self, recording_path: Path, pid: int) -> None:
        self._place = recording_path
        self._socket = sys.stdin.fileno()
        self._received = b""
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._watch: int | None = None
        with contextlib.suppress(OSError):  # not on this system, or the process is gone
            self._watch = os.pidfd_open(pid)
            self._poll.register(self._watch, select.POLLIN)
        self._over = not is_live(recording_path)  # also if the pid is another process's by now

    def listen(self) -> _Report:
        """Wait for news."""
        if self._over:
            return _Report(over=True)
        ready = dict(self._poll.poll(None if self._watch is not None else _LOOK_EVERY_MS))
        if self._watch in ready or (self._watch is None and not is_live(self._place)):
            return _Report(over=True)
        if self._socket not in ready:
            return _Report()
        content = self._receive()
        *lines, self._received = (self._received + content).split(b"\n")
        if b"end" in lines:
            return _Report(over=True)
        if not content:
            return self._after_the_last_word()
        return _Report(int(lines[-1]) if lines else 0)

    def _receive(self) -> bytes:
        try:
            return os.read(self._socket, _READ)
        except ConnectionError:
            return b""

    def _after_the_last_word(self) -> _Report:
        """Return True if the training is ending, whose files close first, or only closed the pipe."""
        self._poll.unregister(self._socket)
        died = self._poll.poll(_LOOK_EVERY_MS) or not is_live(self._place)
        return _Report(over=bool(died), disconnected=not died)
