"""A long recording has its full segments turned into Arrow by another process, see `converter`.

It is started once a recording has grown, between two steps, and is told now and then how far segments
are full. It is nobody's child: who waits for the children of the training never sees it, and it does
not end with them.
"""

from __future__ import annotations

import os

from tracelens_instrument import own_python, segments
from tracelens_instrument.descriptors import Descriptor
from tracelens_instrument.failures import Tolerated, let_through

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from pathlib import Path
    from typing import Final

    from tracelens.schema.side import Retention

__all__ = ["SWITCH", "Background"]

SWITCH: Final = "TRACELENS_CONVERTER"

_BEGIN_AT: Final = 32  # full segments: 130,000 events
_TELL_EVERY: Final = 4
_STARTS: Final = 3  # of converters, one after the other, if they are killed
_PATIENCE_MS: Final = 3000
_QUIETLY: Final = 0x4040  # MSG_NOSIGNAL | MSG_DONTWAIT
_SHELL: Final = "/bin/sh"
_LEAVE: Final = 'exec 3<&0; "$@" <&3 3<&- &'  # with our end of the line; the shell ends at once
_PROGRAM: Final = (
    "from tracelens_instrument.last_in_line import step_back; step_back(); "  # before it loads more
    "from tracelens_instrument.converter import main; main()"
)


class Background:
    """The converter of one recording; nothing here raises."""

    def __init__(self, place: Path, retention: Retention) -> None:
        self._place = place
        self._left = _STARTS if _wanted(retention) else 0
        self._line: _Line | None = None
        self._next = _BEGIN_AT
        if retention.budget_bytes is not None:
            half = retention.budget_bytes // segments.SEGMENT_BYTES // 2
            self._next = max(segments.LEAST_CONVERTED, min(_BEGIN_AT, half))

    def tell(self, number: int) -> None:
        """Say that the segments before this number are full; start the converter if it is time."""
        if number < self._next:
            return
        self._next = number + _TELL_EVERY
        if self._line is None and self._left:
            self._left -= 1
            try:
                self._line = _start(self._place)
            except (OSError, ValueError, ImportError) as error:  # it is done at the end, then
                let_through(error)
        self._say(b"%d\n" % number)

    def end(self) -> bool:
        """Have the rest converted; False if there is nobody who still does."""
        self._say(b"end\n")
        line, self._line = self._line, None
        return line is not None and not line.broken_off(_PATIENCE_MS)

    def abandon(self) -> None:
        """Have nothing to do with it, in a forked child: it is the parent's."""
        self._left = 0
        line, self._line = self._line, None
        if line is not None:
            line.let_go()

    def _say(self, text: bytes) -> None:
        if self._line is not None and not self._line.say(text):
            self._line.let_go()
            self._line = None


class _Line:
    """One end of a line to the converter; a socket, as a pipe that breaks can kill who writes to it."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._descriptor = Descriptor(end.fileno())

    def say(self, text: bytes) -> bool:
        """Say something, if it still listens."""
        try:
            if self._descriptor.number is None:
                return False
            self._socket.send(text, _QUIETLY)
        except BlockingIOError:
            return True  # it has enough to do
        except OSError as error:
            let_through(error)
            return False
        return True

    def broken_off(self, patience_ms: int) -> bool:
        """Wait until the other end has gone, or for so long; hang up."""
        import select  # noqa: PLC0415 - not before it is needed: recording must start quickly

        gone = select.poll()
        gone.register(self._socket, 0)
        found = bool(gone.poll(patience_ms))
        self.let_go()
        return found

    def let_go(self) -> None:
        """Hang up, unless the training has done so: what has its number may be something else now."""
        with Tolerated(OSError):
            self._descriptor.close()
            self._socket.detach()


def _start(place: Path) -> _Line:
    import socket  # noqa: PLC0415 - not before it is needed: recording must start quickly

    ours, theirs = socket.socketpair()
    with theirs:
        try:
            _spawn(place, theirs.fileno())
            return _Line(ours)
        except BaseException:
            ours.close()
            raise


def _wanted(retention: Retention) -> bool:
    """Whether there may be a converter; of a recording of the last steps nothing is sure to stay."""
    return os.environ.get(SWITCH) != "0" and retention.last is None and own_python.is_there()


def _spawn(place: Path, reading: int) -> None:
    """Start the converter as nobody's child, and with nothing of ours but the pipe.

    Raises:
        OSError: it cannot be started.
    """
    import signal  # noqa: PLC0415 - as above

    converter = own_python.command(_PROGRAM, str(place), str(os.getpid()))
    nowhere = [(os.POSIX_SPAWN_OPEN, out, os.devnull, os.O_WRONLY, 0) for out in (1, 2)]
    shell = os.posix_spawn(
        _SHELL,
        [_SHELL, "-c", _LEAVE, "sh", *converter],
        own_python.environment(),
        file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0), *nowhere],
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD],
    )
    with Tolerated(ChildProcessError):  # somebody waits for all children
        os.waitpid(shell, 0)
