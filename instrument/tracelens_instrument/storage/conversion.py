"""Having segments turned into Arrow, by processes of the recorder's own.

Of a long recording another process does so while training goes on (`converter`). It is started once the
recording has grown, between two steps, and is informed now and then how far segments are full. It is
detached: a program that waits for its children never sees it, and it does not end with them.

What is left at the end is done without loading anything into the training for it. Libraries that find
too little memory, or may not start their threads, do not fail by an exception: they end the process,
or interrupt it. So it is done in a process, too, unless the training has them loaded and is not short
of memory.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING, Final

from tracelens_instrument.core.failures import Tolerated, reraise_if_handlers
from tracelens_instrument.storage import segments
from tracelens_instrument.storage.descriptors import Descriptor, LimitsAsErrors

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from tracelens.schema.side import Retention

__all__ = [
    "SWITCH",
    "Background",
    "bare_environment",
    "can_start_python",
    "convert",
    "python_command",
]


_PYTHONS: Final = ("python", "pypy")
_FEW_THREADS: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_LITTLE_MEMORY: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
_FIND: Final = "import sys; sys.path[:0] = sys.argv[{}:]; "
SWITCH: Final = "TRACELENS_CONVERTER"
_START_AT: Final = 32  # full segments: 130,000 events
_REPORT_EVERY: Final = 4
_STARTS: Final = 3  # of converters, one after the other, if they are killed
_PATIENCE_MS: Final = 3000
_LOOK_EVERY_MS: Final = 1000
_STILL: Final = 60  # looks at a file that does not grow: its converter is given up
_SEND_FLAGS: Final = 0x4040  # MSG_NOSIGNAL | MSG_DONTWAIT
_NO_MORE: Final = 1  # SHUT_WR
_SHELL: Final = "/bin/sh"
_ORPHAN: Final = 'exec 3<&0; "$@" <&3 3<&- &'  # with our end of the line; the shell ends at once
_BACKGROUND_PROGRAM: Final = (
    # before it loads more
    "from tracelens_instrument.storage.low_priority import lower_priority; lower_priority(); "
    "from tracelens_instrument.storage.converter import main; main()"
)
_LIBRARIES: Final = ("numpy", "pyarrow")
_MEMORY_LIMITS: Final = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
_FINAL_PROGRAM: Final = (
    "from pathlib import Path; from tracelens.conversion.segments import convert; "
    "convert(Path(sys.argv[1]))"
)


def can_start_python() -> bool:
    """Return True if this Python can be started again, and is not embedded in a program."""
    name = (
        (sys.executable or "").rpartition("/")[2].rstrip("t").rstrip("0123456789.")
    )  # python3.13t
    return name in _PYTHONS and not getattr(sys, "frozen", False)


def python_command(program: str, *arguments: str) -> list[str]:
    """Return the command that runs `program` with `arguments` and this process's packages."""
    paths = [os.path.abspath(path) for path in sys.path if path]  # noqa: PTH100 - of texts
    find = _FIND.format(1 + len(arguments))
    return [sys.executable, "-I", "-S", "-c", find + program, *arguments, *paths]


def bare_environment() -> dict[str, str]:
    """Return the training's environment without what would make the process record, or be recorded."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TRACELENS_") and name != "LD_PRELOAD"
    }
    return variables | _FEW_THREADS | _LITTLE_MEMORY


class Background:
    """The converter of one recording; nothing here raises."""

    def __init__(self, place: Path, retention: Retention) -> None:
        self._place = place
        self._left = _STARTS if _converter_wanted(retention) else 0
        self._line: _Channel | None = None
        self._next = _START_AT
        if retention.budget_bytes is not None:
            half = retention.budget_bytes // segments.SEGMENT_BYTES // 2
            self._next = max(segments.LEAST_CONVERTED, min(_START_AT, half))

    def inform(self, number: int) -> None:
        """Inform the converter that the segments before this number are full; start it if it is time."""
        if number < self._next:
            return
        self._next = number + _REPORT_EVERY
        if self._line is None and self._left:
            self._left -= 1
            try:
                self._line = _start_converter(self._place)
            except (OSError, ValueError, ImportError) as error:  # it is done at the end, then
                reraise_if_handlers(error)
        self._send(b"%d\n" % number)

    def end(self, growing: Path | None = None) -> bool:
        """Hand over the rest for conversion; False if no converter runs any more. None starts now.

        It is given three seconds, or as long as the file `growing` grows, if one is named.
        """
        self._left = 0
        self._send(b"end\n")
        line, self._line = self._line, None
        if line is None:
            return False
        try:
            line.finish_sending()
            ended = line.broken_off(_PATIENCE_MS)
            return not (ended or (growing is not None and _await_end(line, growing)))
        finally:
            line.let_go()

    def abandon(self) -> None:
        """Drop the connection, in a forked child: it is the parent's."""
        self._left = 0
        line, self._line = self._line, None
        if line is not None:
            line.let_go()

    def _send(self, text: bytes) -> None:
        if self._line is not None and not self._line.send(text):
            self._line.let_go()
            self._line = None


class _Channel:
    """One end of a line to the converter; a socket, as a pipe that breaks can kill who writes to it."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._descriptor = Descriptor(end.fileno())

    def send(self, text: bytes) -> bool:
        """Send a message, if the converter still reads."""
        try:
            if self._descriptor.number is None:
                return False
            self._socket.send(text, _SEND_FLAGS)
        except BlockingIOError:
            return True  # it has enough to do
        except OSError as error:
            reraise_if_handlers(error)
            return False
        return True

    def finish_sending(self) -> None:
        """Send no more; the other end notices this even if the last message found no room."""
        with Tolerated(OSError):
            if self._descriptor.number is not None:
                self._socket.shutdown(_NO_MORE)

    def broken_off(self, patience_ms: int) -> bool:
        """Wait until the other end has closed, at most that long; return True if it has."""
        import select  # noqa: PLC0415 - not before it is needed: recording must start quickly

        poller = select.poll()
        poller.register(self._socket, 0)
        return bool(poller.poll(patience_ms))

    def let_go(self) -> None:
        """Close the socket, unless the training has done so: the number may be another file's now."""
        self._socket.detach()
        with Tolerated(OSError):
            self._descriptor.close()


def _await_end(line: _Channel, growing: Path) -> bool:
    """Wait for a converter as long as its file grows; return whether it has ended."""
    size, still = -1, 0
    try:
        while still < _STILL:
            if line.broken_off(_LOOK_EVERY_MS):
                return True
            before, size = size, _size_of(growing)
            still = still + 1 if size == before else 0
            _show(f"TraceLens: writing the recording, {max(size, 0) / 1e6:.0f} MB so far")
    finally:
        _show("")
    return False


def _show(text: str) -> None:
    """Replace the last line of the terminal; nothing if standard error is no terminal."""
    with Tolerated(Exception):  # it may be closed, or the training's own
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        reraise_if_handlers(error)
        return -1  # it is not begun, or has its place already


def _start_converter(place: Path) -> _Channel:
    import socket  # noqa: PLC0415 - not before it is needed: recording must start quickly

    own_end, converter_end = socket.socketpair()
    with converter_end:
        try:
            _spawn_converter(place, converter_end.fileno())
            return _Channel(own_end)
        except BaseException:
            own_end.close()
            raise


def _converter_wanted(retention: Retention) -> bool:
    """Return True if a converter may run; not where only the last steps are kept."""
    return os.environ.get(SWITCH) != "0" and retention.last is None and can_start_python()


def _spawn_converter(place: Path, reading: int) -> None:
    """Start the converter detached from this process, with no descriptor but the pipe.

    Raises:
        OSError: it cannot be started.
    """
    import signal  # noqa: PLC0415 - as above

    converter = python_command(_BACKGROUND_PROGRAM, str(place), str(os.getpid()))
    nowhere = [(os.POSIX_SPAWN_OPEN, out, os.devnull, os.O_WRONLY, 0) for out in (1, 2)]
    shell = os.posix_spawn(
        _SHELL,
        [_SHELL, "-c", _ORPHAN, "sh", *converter],
        bare_environment(),
        file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0), *nowhere],
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD],
    )
    with Tolerated(ChildProcessError):  # the program waits for all children
        os.waitpid(shell, 0)


def convert(place: Path) -> None:
    """Turn a segments folder into an Arrow file; `place` is the folder, or the note that leads there.

    Raises:
        OSError: it was not done; the segments are as they were.
        UnusableInput: they are damaged.
    """
    if _libraries_loaded() or not can_start_python():
        from tracelens.conversion.segments import convert as convert_here  # noqa: PLC0415 - it loads pyarrow

        with LimitsAsErrors():
            convert_here(place)
    else:
        _convert_in_process(place)


def _libraries_loaded() -> bool:
    """Return True if all that it needs is loaded already, and memory suffices."""
    limited = any(resource.getrlimit(what)[0] != resource.RLIM_INFINITY for what in _MEMORY_LIMITS)
    return not limited and all(name in sys.modules for name in _LIBRARIES)


def _convert_in_process(place: Path) -> None:
    # Not by `subprocess`: its import resets that the training ends by Ctrl-C, and so its exit code.
    read_end, write_end = os.pipe()
    try:
        child = os.posix_spawn(
            sys.executable,
            python_command(_FINAL_PROGRAM, str(place)),
            bare_environment(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, 0, 1),
                (os.POSIX_SPAWN_DUP2, write_end, 2),
            ],
        )
    finally:
        os.close(write_end)
        with open(read_end, "rb") as errors:  # noqa: PTH123 - a descriptor
            error_output = errors.read()
    if _process_failed(child):
        raise OSError(error_output.decode(errors="replace").strip().rpartition("\n")[2])


def _process_failed(child: int) -> bool:
    """Wait for a child; where the program waits for all children, its exit code is not known."""
    try:
        return os.waitpid(child, 0)[1] != 0
    except ChildProcessError:
        return False
