"""The side file of a live recording, and the losses that are reported in it.

Whole lines are appended, one `write` each. Losses are counted by reason, and reported now and then.
"""

from __future__ import annotations

import errno
import os

from tracelens.schema.side import format_dropped_line
from tracelens.schema.vocabulary import SIDE_FILE
from tracelens_instrument.core.failures import Counter, Tolerated, cannot_write, reraise_if_handlers
from tracelens_instrument.storage.descriptors import Descriptor, LimitsAsErrors

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Final

__all__ = ["Losses", "SideFile"]

_FIRST_PAUSE_NS: Final = 10**9
_LONGEST_PAUSE_NS: Final = 64 * 10**9
_FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT)
_BLOCK_BYTES: Final = 1 << 12
_RESERVE_BYTES: Final = 16 * _BLOCK_BYTES
_WARNING: Final = "the side file of the recording cannot be written"
_APPEND_FLAGS: Final = os.O_WRONLY | os.O_APPEND


class Losses:
    """Counters by reason; a long loss is reported ever more rarely, so that reports stay small."""

    def __init__(self, report: Callable[[bytes], None]) -> None:
        self._append_line = report
        self._counters: dict[str, Counter] = {}
        self._reported_counts: dict[str, int] = {}
        self._due_ns = 0
        self._wait_ns = _FIRST_PAUSE_NS

    def counter(self, reason: str) -> Counter:
        """Return the counter of a reason."""
        return self._counters.setdefault(reason, Counter())

    def adopt(self, reason: str, counter: Counter) -> None:
        """Report a counter that is kept elsewhere."""
        self._counters[reason] = counter

    def report_if_due(self, now_ns: int) -> None:
        """Report what has changed, unless that was done just before `now_ns`."""
        if now_ns >= self._due_ns and self.report():
            self._due_ns = now_ns + self._wait_ns
            self._wait_ns = min(2 * self._wait_ns, _LONGEST_PAUSE_NS)

    def report(self) -> bool:
        """Append a line for each reason whose count of lost events has changed; True if any has."""
        earlier_counts = dict(self._reported_counts)
        for reason, counter in list(self._counters.items()):
            count = counter.total()
            if count != self._reported_counts.get(reason, 0):
                self._reported_counts[reason] = count
                self._append_line(format_dropped_line(reason, count))
        return earlier_counts != self._reported_counts


class SideFile:
    """Appends lines; a line that does not fit waits for the next attempt.

    It holds a little room in reserve, so that also on a full disk it can be said what was lost.
    """

    def __init__(self, folder: Path) -> None:
        """Create the file, exclusively.

        Raises:
            OSError: it cannot be created.
        """
        self._path = folder / SIDE_FILE
        self._descriptor = Descriptor(
            os.open(self._path, _APPEND_FLAGS | os.O_CREAT | os.O_EXCL, 0o644)
        )
        self._reserve = _Reserve(folder)
        self.size_bytes = 0
        self._waiting_lines: list[bytes] = []
        self._is_torn = False
        self._is_closed = False

    def append(self, line: bytes) -> None:
        """Append a line; what cannot be written now is appended by the next call.

        That is where the disk is full, a limit of the file's size is reached, or a signal handler raises
        meanwhile.
        """
        lines, self._waiting_lines = [*self._waiting_lines, line], []
        written_count = 0
        try:
            with LimitsAsErrors():
                while written_count < len(lines) and self._write(lines[written_count]):
                    written_count += 1
        except BaseException:  # a signal handler may raise anything here
            if written_count < len(lines) and self._is_written(lines[written_count]):
                written_count += 1
            raise
        finally:
            self._waiting_lines = lines[written_count:] + self._waiting_lines

    def _is_written(self, line: bytes) -> bool:
        """Check whether a line was written although the caller was interrupted before noting it."""
        number = self._descriptor.descriptor_number
        new_bytes = 0 if number is None else os.fstat(number).st_size - self.size_bytes
        self.size_bytes += new_bytes
        self._is_torn = 0 < new_bytes < len(line)
        return new_bytes >= len(line)

    def _write(self, line: bytes) -> bool:
        if self._is_closed:
            return True
        try:
            fits = self._write_once(line)
            while not fits and self._reserve.give():
                fits = self._write_once(line)
        except OSError as error:
            reraise_if_handlers(error)
            cannot_write(_WARNING, self._path.parent, error)
            return False
        if not fits:
            cannot_write(
                _WARNING, self._path.parent, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            )
        return fits

    def _write_once(self, line: bytes) -> bool:
        """Append a line; False if there was no room for all of it.

        The part that did fit becomes a line of its own, which readers pass over.
        """
        content = b"\n" + line if self._is_torn else line
        try:
            written_bytes = os.write(self._open_descriptor(), content)
        except OSError as error:
            if error.errno not in _FULL_ERRNOS:
                raise
            return False
        self.size_bytes += written_bytes
        self._is_torn = written_bytes < len(content)
        return not self._is_torn

    def _open_descriptor(self) -> int:
        """Return the number of the file's descriptor, opened again if the program has closed it."""
        number = self._descriptor.descriptor_number
        if number is None:
            reopened = Descriptor(os.open(self._path, _APPEND_FLAGS))
            if not reopened.is_same_file(self._descriptor):
                reopened.close()
                raise OSError(errno.EBADF, "the side file was closed and replaced by another")
            self._descriptor = reopened
            number = reopened.descriptor_number
        assert number is not None  # it was opened just now
        return number

    def close(self) -> None:
        """Close the file; later lines go nowhere."""
        self._is_closed = True
        self._descriptor.close()
        self._reserve.close()


class _Reserve:
    """Room on the disk that is held by a file without a name, and given back block by block."""

    def __init__(self, folder: Path) -> None:
        self._descriptor: Descriptor | None = None
        self._size_bytes = 0
        with Tolerated(OSError), LimitsAsErrors():  # then there is none
            number = os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600)
            self._descriptor = Descriptor(number)
            os.posix_fallocate(number, 0, _RESERVE_BYTES)
            self._size_bytes = _RESERVE_BYTES

    def give(self) -> bool:
        """Make room for others; False if there is nothing left to give."""
        number = None if self._descriptor is None else self._descriptor.descriptor_number
        if number is None or self._size_bytes == 0:
            return False
        self._size_bytes -= _BLOCK_BYTES
        os.ftruncate(number, self._size_bytes)
        return True

    def close(self) -> None:
        if self._descriptor is not None:
            self._descriptor.close()
