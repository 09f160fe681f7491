"""How a recorded process ended: a row of the side tables, and the files that signals leave.

`faulthandler` writes such a file when a signal ends the process, since Python code does not run any
more then. Readers turn it into a row like that of an exception.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tracelens.schema.gate import open_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Final

FATAL_DUMP: Final = "fatal.dump"  # of SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL
TERMINATED_DUMP: Final = "sigterm.dump"
DUMPS: Final = (FATAL_DUMP, TERMINATED_DUMP)
MAX_FRAMES: Final = 50
MAX_MESSAGE: Final = 500
_MOST_BYTES: Final = 1 << 20
# Packages are installed in such folders; the recorder may stand elsewhere.
_LIBRARIES: Final = re.compile(
    r".*/(?:site-packages|dist-packages|lib/python3[^/]*)/|.*/(?=tracelens_instrument/)|<frozen "
)
_FATAL: Final = re.compile(r"Fatal Python error: (.*)")
_FRAME: Final = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_SIGNALS: Final = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}


@dataclass(frozen=True)
class Ending:
    """What ended a process, or a thread of it.

    `at_ns` is a time of this process's monotonic clock. `cause` is the type of an exception, the name of
    a signal, such as ``SIGTERM``, or ``exit code N`` of a SystemExit without a text. `frames` are
    ``function (file:line)``, innermost first, and `user_frame` is the innermost one outside of
    libraries. `thread` is null for the main thread, whose exception ends the process.
    """

    at_ns: int
    cause: str
    message: str = ""
    thread: str | None = None
    user_frame: str | None = None
    frames: list[str] = field(default_factory=list)


def is_library_file(file: str) -> bool:
    """Return True if a file belongs to Python or to an installed package."""
    return _LIBRARIES.match(file) is not None


def read_dumps(folder: Path, wall_minus_monotonic_ns: int) -> Iterator[Ending]:
    """Yield what signals left in a segments folder; the time is that of the last write to the file."""
    for name in DUMPS:
        try:
            with open_regular(folder / name) as file:
                text = file.read(_MOST_BYTES).decode("utf-8", "replace")
            written_ns = (folder / name).stat().st_mtime_ns
        except OSError:
            continue
        if text.strip():
            yield _parse(name, text, written_ns - wall_minus_monotonic_ns)


def _parse(name: str, text: str, at_ns: int) -> Ending:
    """Return the ending that a dump tells; of several threads, the one that got the signal."""
    fatal = _FATAL.search(text)
    reason = fatal[1].strip() if fatal else ""
    cause = "SIGTERM" if name == TERMINATED_DUMP else _SIGNALS.get(reason, reason or "a signal")
    _, _, current_thread_text = text.partition("Current thread")
    frames: list[str] = []
    user_frame = None
    for line in (current_thread_text or text).splitlines()[1:]:
        frame = _FRAME.fullmatch(line)
        if frame is None:
            break
        file = frame[1]
        frames.append(f"{frame[3]} ({_shorten_path(file)}:{frame[2]})")
        if user_frame is None and not is_library_file(file):
            user_frame = frames[-1]
    return Ending(max(at_ns, 0), cause, user_frame=user_frame, frames=frames[:MAX_FRAMES])


def _shorten_path(file: str) -> str:
    """Return a file's path in its library, or its name alone."""
    library = _LIBRARIES.match(file)
    return file[library.end() :] if library else file.rpartition("/")[2]
