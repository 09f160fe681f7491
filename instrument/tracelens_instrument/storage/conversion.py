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
_FIRST_REPORT_SEGMENTS: Final = 32  # full segments: 130,000 events
_SEGMENTS_PER_REPORT: Final = 4
_MAX_CONVERTER_STARTS: Final = 3  # of converters, one after the other, if they are killed
_PATIENCE_MS: Final = 3000
_LOOK_EVERY_MS: Final = 1000
_MOST_UNCHANGED_LOOKS: Final = 60  # looks at a file that does not grow: its converter is given up
_SEND_FLAGS: Final = 0x4040  # MSG_NOSIGNAL | MSG_DONTWAIT
_SHUTDOWN_SENDING: Final = 1  # SHUT_WR
_SHELL: Final = "/bin/sh"
_RUN_DETACHED: Final = (
    'exec 3<&0; "$@" <&3 3<&- &'  # with our end of the line; the shell ends at once
)
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
    file_name = (sys.executable or "").rpartition("/")[2]  # such as python3.13t
    return file_name.rstrip("t").rstrip("0123456789.") in _PYTHONS and not getattr(
        sys, "frozen", False
    )


def python_command(program: str, *arguments: str) -> list[str]:
    """Return the command that runs `program` with `arguments` and this process's packages."""
    paths = [os.path.abspath(path) for path in sys.path if path]  # noqa: PTH100 - of texts
    find = _FIND.format(1 + len(arguments))
    return [sys.executable, "-I", "-S", "-c", find + program, *arguments, *paths]


def bare_environment() -> dict[str, str]:
    """Return the environment for a converter: the training's, less what would make it record, too."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TRACELENS_") and name != "LD_PRELOAD"
    }
    return variables | _FEW_THREADS | _LITTLE_MEMORY


class Background:
    """The converter of one recording; nothing here raises."""

    def __init__(self, recording_path: Path, retention: Retention) -> None:
        self._recording_path = recording_path
        self._starts_left = _MAX_CONVERTER_STARTS if _converter_wanted(retention) else 0
        self._channel: _Channel | None = None
        self._next_report_count = _FIRST_REPORT_SEGMENTS
        if retention.budget_bytes is not None:
            half_budget_segments = retention.budget_bytes // segments.SEGMENT_BYTES // 2
            self._next_report_count = max(
                segments.MIN_CONVERTED_SEGMENTS, min(_FIRST_REPORT_SEGMENTS, half_budget_segments)
            )

    def inform(self, full_segments: int) -> None:
        """Inform the converter of how many segments are full; start it if it is time."""
        if full_segments < self._next_report_count:
            return
        self._next_report_count = full_segments + _SEGMENTS_PER_REPORT
        if self._channel is None and self._starts_left:
            self._starts_left -= 1
            try:
                self._channel = _start_converter(self._recording_path)
            except (OSError, ValueError, ImportError) as error:  # it is done at the end, then
                reraise_if_handlers(error)
        self._send(b"%d\n" % full_segments)

    def end(self, growing_file: Path | None = None) -> bool:
        """Hand over the rest to the converter, and wait for its end; True if it still runs then.

        It has three seconds, or as long as `growing_file`, which it writes, grows.
        """
        self._starts_left = 0
        self._send(b"end\n")
        channel, self._channel = self._channel, None
        if channel is None:
            return False
        try:
            channel.finish_sending()
            is_closed = channel.wait_until_closed(_PATIENCE_MS)
            return not (
                is_closed or (growing_file is not None and _await_end(channel, growing_file))
            )
        finally:
            channel.close()

    def abandon(self) -> None:
        """Drop the connection, in a forked child: it is the parent's."""
        self._starts_left = 0
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _send(self, text: bytes) -> None:
        if self._channel is not None and not self._channel.send(text):
            self._channel.close()
            self._channel = None


class _Channel:
    """One end of a line to the converter; a socket, as a pipe that breaks can kill who writes to it."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._descriptor = Descriptor(end.fileno())

    def send(self, text: bytes) -> bool:
        """Send a message, if the converter still reads."""
        try:
            if self._descriptor.descriptor_number is None:
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
            if self._descriptor.descriptor_number is not None:
                self._socket.shutdown(_SHUTDOWN_SENDING)

    def wait_until_closed(self, patience_ms: int) -> bool:
        """Wait until the other end has closed, at most that long; return True if it has."""
        import select  # noqa: PLC0415 - not before it is needed: recording must start quickly

        poller = select.poll()
        poller.register(self._socket, 0)
        return bool(poller.poll(patience_ms))

    def close(self) -> None:
        """Close the socket, unless the training has done so: the number may be another file's now."""
        self._socket.detach()
        with Tolerated(OSError):
            self._descriptor.close()


def _await_end(channel: _Channel, growing_file: Path) -> bool:
    """Wait for a converter while its file grows, and show its size; True if it has ended."""
    size_bytes, unchanged_looks = -1, 0
    try:
        while unchanged_looks < _MOST_UNCHANGED_LOOKS:
            if channel.wait_until_closed(_LOOK_EVERY_MS):
                return True
            earlier_bytes, size_bytes = size_bytes, _size_of(growing_file)
            unchanged_looks = unchanged_looks + 1 if size_bytes == earlier_bytes else 0
            _show(f"TraceLens: writing the recording, {max(size_bytes, 0) / 1e6:.0f} MB so far")
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


def _start_converter(recording_path: Path) -> _Channel:
    """Start the process that converts a recording, and return the channel to it."""
    import socket  # noqa: PLC0415 - not before it is needed: recording must start quickly

    own_socket, converter_socket = socket.socketpair()
    with converter_socket:
        try:
            _spawn_converter(recording_path, converter_socket.fileno())
            return _Channel(own_socket)
        except BaseException:
            own_socket.close()
            raise


def _converter_wanted(retention: Retention) -> bool:
    """Return True if a converter may run; not where only the last steps are kept."""
    return os.environ.get(SWITCH) != "0" and retention.last is None and can_start_python()


def _spawn_converter(recording_path: Path, input_descriptor: int) -> None:
    """Start the converter by a shell that ends immediately; it inherits only its input descriptor.

    Raises:
        OSError: it cannot be started.
    """
    import signal  # noqa: PLC0415 - as above

    command = python_command(_BACKGROUND_PROGRAM, str(recording_path), str(os.getpid()))
    discard_outputs = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    shell_pid = os.posix_spawn(
        _SHELL,
        [_SHELL, "-c", _RUN_DETACHED, "sh", *command],
        bare_environment(),
        file_actions=[(os.POSIX_SPAWN_DUP2, input_descriptor, 0), *discard_outputs],
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD],
    )
    with Tolerated(ChildProcessError):  # the program waits for all children
        os.waitpid(shell_pid, 0)


def convert(recording_path: Path) -> None:
    """Turn a segments folder, named by itself or by the note that leads there, into an Arrow file.

    Raises:
        OSError: it was not done; the segments are as they were.
        UnusableInput: they are damaged.
    """
    if _libraries_loaded() or not can_start_python():
        from tracelens.conversion.segments import convert as convert_here  # noqa: PLC0415 - it loads pyarrow

        with LimitsAsErrors():
            convert_here(recording_path)
    else:
        _convert_in_process(recording_path)


def _libraries_loaded() -> bool:
    """Return True if all that it needs is loaded already, and memory suffices."""
    limited = any(resource.getrlimit(what)[0] != resource.RLIM_INFINITY for what in _MEMORY_LIMITS)
    return not limited and all(name in sys.modules for name in _LIBRARIES)


def _convert_in_process(recording_path: Path) -> None:
    """Convert a recording in a process of its own, whose last line of errors becomes an OSError."""
    # Not by `subprocess`: its import resets that the training ends by Ctrl-C, and so its exit code.
    read_descriptor, write_descriptor = os.pipe()
    try:
        child_pid = os.posix_spawn(
            sys.executable,
            python_command(_FINAL_PROGRAM, str(recording_path)),
            bare_environment(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, 0, 1),
                (os.POSIX_SPAWN_DUP2, write_descriptor, 2),
            ],
        )
    finally:
        os.close(write_descriptor)
        with open(read_descriptor, "rb") as errors:  # noqa: PTH123 - a descriptor
            error_output = errors.read()
    if _process_failed(child_pid):
        raise OSError(error_output.decode(errors="replace").strip().rpartition("\n")[2])


def _process_failed(child_pid: int) -> bool:
    """Wait for a child; where the program waits for all children, its exit code is not known."""
    try:
        return os.waitpid(child_pid, 0)[1] != 0
    except ChildProcessError:
        return False
