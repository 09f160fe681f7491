"""The gate through which every file of a trace is opened: regular files only, none beyond its limit.

A trace may come from a stranger. A named pipe would be waited for without end, a device read until
memory is used up, and a file of some kilobytes may claim to become gigabytes. So a reader
opens it here, and asks here how much it may hold, before anything is allocated for it.
"""

from __future__ import annotations

import io
import os
import stat

from tracelens import containment
from tracelens.errors import InvalidArgument, NotATrace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Final

# What each limit is about, and its value; `--limit NAME=VALUE` sets another one.
LIMITS: Final = {
    "file": (4 << 30, "bytes of an Arrow file, or of a table"),
    "decompressed": (64 << 30, "bytes that one file may become when it is decompressed"),
    "rows": (50_000_000, "rows of a table of spans, which is held in memory"),
    "columns": (10_000, "columns of a table of spans"),
    "text": (1 << 20, "bytes of one text: a cell of a table, a name, a line"),
    "side": (256 << 20, "bytes of a recording's side file, or of its progress"),
    "segment": (256 << 20, "bytes of one live segment"),
    "samples": (1 << 30, "bytes of a file of sampled stacks"),
    "document": (1 << 30, "bytes of a JSON document, or of one line, that is parsed as a whole"),
    "memory": (16 << 30, "bytes of memory that reading one file may take"),
    "cpu": (120, "seconds of CPU that reading one file may take, beside one for each MiB of it"),
}
# In the environment, so that workers in other processes hold to the same.
_VARIABLE: Final = "TRACELENS_LIMITS"
_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_WITHOUT_WAITING: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def limit(name: str) -> int:
    """Return the value of a limit, as `LIMITS` or `raise_limit` set it."""
    return _read_raised_limits().get(name, LIMITS[name][0])


def raise_limit(name: str, value: int) -> None:
    """Set a limit for this process and those that it starts.

    Raises:
        InvalidArgument: there is no such limit, or no file could be read with this value.
    """
    if name not in LIMITS:
        raise InvalidArgument(
            f"there is no limit '{name}': expected one of {', '.join(sorted(LIMITS))}."
        )
    if value < 1:
        raise InvalidArgument(f"the limit '{name}' is {value}: expected 1 or more.")
    values = _read_raised_limits() | {name: value}
    os.environ[_VARIABLE] = ",".join(f"{name}={value}" for name, value in values.items())


def _read_raised_limits() -> dict[str, int]:
    pairs = (pair.partition("=") for pair in os.environ.get(_VARIABLE, "").split(",") if pair)
    return {name: int(value) for name, _, value in pairs if name in LIMITS and value.isdecimal()}


def refuse_beyond(name: str, amount: int, subject: str = "it") -> None:
    """Refuse an amount beyond the limit `name`; `subject` has this amount, in the limit's unit.

    Raises:
        NotATrace: it is; the sentence says how to raise the limit.
    """
    max_amount = limit(name)
    if amount > max_amount:
        unit = LIMITS[name][1].partition(" ")[0]
        raise NotATrace(
            f"{subject} has {amount} {unit}, more than the limit of {max_amount} ('--limit "
            f"{name}=...' raises it)"
        )


def admit(path: Path) -> None:
    """Refuse what is left out as it would end this process.

    Raises:
        NotATrace: it is.
    """
    reason = containment.find_reason_left_out(path)
    if reason is not None:
        raise NotATrace(reason)


def open_regular(path: Path, limit_name: str = "file") -> io.FileIO:
    """Open a regular file, unbuffered, that is no larger than one of `LIMITS`.

    Raises:
        NotATrace: it is no regular file, too large, or left out.
        OSError: the system refused; there may be no such file.
    """
    file = _open_any_size(path)
    try:
        size_bytes = os.fstat(file.fileno()).st_size
        refuse_beyond(limit_name, size_bytes)
        containment.allow_more_cpu(limit("cpu"), size_bytes)
    except BaseException:
        file.close()
        raise
    return file


def _open_any_size(path: Path) -> io.FileIO:
    """Open a regular file of any size.

    Raises:
        NotATrace, OSError: as `open_regular` does.
    """
    admit(path)
    descriptor = os.open(path, _WITHOUT_WAITING)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = next((kind for matches, kind in _KINDS if matches(mode)), "special")
        raise NotATrace(f"it is {kind}, expected a regular file")
    return io.FileIO(descriptor)


def check_path(path: Path, limit_name: str = "file") -> Path:
    """Return the path of a file that `open_regular` would open, for a library that opens it itself.

    Raises:
        NotATrace, OSError: as `open_regular` does.
    """
    open_regular(path, limit_name).close()
    return path


def read_beginning(path: Path, byte_count: int) -> bytes:
    """Return the first bytes of a file, which tell its format; empty if it cannot be opened here.

    A file beyond its limit begins as others do: its reader refuses it.
    """
    try:
        with _open_any_size(path) as file:
            return file.read(byte_count)
    except (OSError, NotATrace):
        return b""


def read_contents(path: Path, limit_name: str = "file") -> bytes:
    """Read a regular file that is no larger than one of `LIMITS`, also if it grows meanwhile.

    Raises:
        NotATrace, OSError: as `open_regular` does.
    """
    with open_regular(path, limit_name) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        content = file.read(size_bytes)
        while len(content) < size_bytes and (more := file.read(size_bytes - len(content))):
            content += more
    return content
