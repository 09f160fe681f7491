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
from tracelens.conversion.lock import hold_lock
from tracelens.conversion.segments import find_folder, finish, is_live
from tracelens.errors import TraceLensError
from tracelens.schema.vocabulary import SIDE_FILE

__all__ = ["main"]

_LOOK_EVERY_MS: Final = 5000  # at a training that cannot be watched; and how long dying may take
_READ_BYTES: Final = 1 << 16


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
    """Convert full segments as the training reports them, and the rest when it is over."""
    folder = find_folder(recording_path)
    with hold_lock(folder / SIDE_FILE), IncrementalConversion(folder) as conversion:
        while not (report := training.listen()).is_over:
            while conversion.advance(report.full_segments):  # a batch each time
                pass
            if report.is_disconnected:
                return  # it trains on, but will report no more: it converts the rest itself
        finish(conversion, recording_path)


class _Report(NamedTuple):
    """How many segments are full, if the recording is over, if nothing more will be heard of it."""

    full_segments: int = 0
    is_over: bool = False
    is_disconnected: bool = False


class _Training:
    """The recording process, as it shows from outside."""

    def __init__(self, recording_path: Path, pid: int) -> None:
        self._recording_path = recording_path
        self._socket = sys.stdin.fileno()
        self._unfinished_line = b""
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._pid_descriptor: int | None = None
        with contextlib.suppress(OSError):  # not on this system, or the process is gone
            self._pid_descriptor = os.pidfd_open(pid)
            self._poll.register(self._pid_descriptor, select.POLLIN)
        self._is_over = not is_live(recording_path)  # also if the pid is another process's by now

    def listen(self) -> _Report:
        """Wait for a line of the training, or for its end; without a pid look now and then."""
        if self._is_over:
            return _Report(is_over=True)
        is_watched = self._pid_descriptor is not None
        ready_descriptors = dict(self._poll.poll(None if is_watched else _LOOK_EVERY_MS))
        has_ended = self._pid_descriptor in ready_descriptors
        if has_ended or (not is_watched and not is_live(self._recording_path)):
            return _Report(is_over=True)
        if self._socket not in ready_descriptors:
            return _Report()
        content = self._receive()
        *lines, self._unfinished_line = (self._unfinished_line + content).split(b"\n")
        if b"end" in lines:
            return _Report(is_over=True)
        if not content:
            return self._report_closed_pipe()
        return _Report(full_segments=int(lines[-1]) if lines else 0)

    def _receive(self) -> bytes:
        try:
            return os.read(self._socket, _READ_BYTES)
        except ConnectionError:
            return b""

    def _report_closed_pipe(self) -> _Report:
        """Report the recording as over if the training is ending, whose files close first."""
        self._poll.unregister(self._socket)
        has_ended = bool(self._poll.poll(_LOOK_EVERY_MS)) or not is_live(self._recording_path)
        return _Report(is_over=has_ended, is_disconnected=not has_ended)
