"""How a file that would end this process, or never be done with, costs no more than its own rank.

Validated files do no harm, but readers use libraries in C and Rust, and a bug in these kills the
process. So `tracelens VERB` runs in a child of a small process that only waits (`supervisor.py`); while
it reads, the system ends it if it takes more than a file may. Then every file is tried alone, in a
process with limits (`cli/trials.py`), and the verb runs again without those that end theirs. Programs
that use `tracelens.open` ask for the trials beforehand (`contained=True`).

This module holds the facts that both need: the files to leave out, and the limits of reading.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Final

OUT_OF_MEMORY: Final = 75  # exit status of a process that was refused memory
BYTES_A_SECOND: Final = 1 << 20  # of a file; it takes a tenth of that time, or less

_reason_by_path: dict[str, str] = {}  # of absolute paths of files that are left out


class _Contained:
    """What a process that may be ended knows: whom to tell what it opens, and how often it watches."""

    def __init__(self, announce: Callable[[Path], None] | None) -> None:
        import resource  # noqa: PLC0415 - other systems lack it

        self.announce = announce
        self.may_end = resource.getrlimit(resource.RLIMIT_CPU)[0] == resource.RLIM_INFINITY
        self.files_at_once = 0  # files that are worked on, at most
        self.open_limits = 0  # blocks `with watching()` that are open


_contained: _Contained | None = None


def contain(announce: Callable[[Path], None] | None = None) -> None:
    """Let this process be ended by what it reads; `announce` is called with each path before."""
    global _contained  # noqa: PLW0603 - of the whole process, as its limits are
    _contained = _Contained(announce)


def is_contained() -> bool:
    """Return True if the files that this process reads may end it."""
    return _contained is not None


def announce_run(path: Path) -> None:
    """Announce a run before it is read."""
    if _contained and _contained.announce:
        _contained.announce(path)


def leave_out(reasons: Mapping[str, str]) -> None:
    """Leave out files, by their absolute paths, from now on."""
    _reason_by_path.update(reasons)


@contextmanager
def leaving_out(reasons: Mapping[str, str]) -> Iterator[None]:
    """Leave out files, by their absolute paths, in the meantime."""
    leave_out(reasons)
    try:
        yield
    finally:
        for path in reasons:
            _reason_by_path.pop(path, None)


def list_left_out(folder: Path) -> list[str]:
    """Return the paths that are left out of a folder, in order."""
    prefix = os.path.join(os.path.abspath(folder), "")  # noqa: PTH100, PTH118 - links stay
    return sorted(path for path in _reason_by_path if path.startswith(prefix))


def find_reason_left_out(path: Path) -> str | None:
    """Return why a file, or a folder of segments, is left out; None = it is not."""
    if not _reason_by_path:
        return None
    return _reason_by_path.get(os.path.abspath(path))  # noqa: PTH100 - links stay


def end_out_of_memory() -> None:
    """End this process if it may be ended: what it read last need not be what took the memory."""
    if _contained:
        os._exit(OUT_OF_MEMORY)


@contextmanager
def limit_cpu_meanwhile(at_once: int = 1) -> Iterator[None]:
    """Limit the CPU of a contained process by the files it reads meanwhile, `at_once` in parallel."""
    contained = _contained
    if contained is None:
        yield
        return
    contained.open_limits += 1
    contained.files_at_once = max(contained.files_at_once, at_once)
    try:
        yield
    finally:
        contained.open_limits -= 1
        if not contained.open_limits:
            contained.files_at_once = 0
            _limit_cpu(cpu_limit_s=None)


def allow_more_cpu(base_s: int, size_bytes: int) -> None:
    """Allow the CPU for one more file from now on: `base_s`, and more for a large file.

    Others may be read at the same time, in threads that use the same CPU time.
    """
    if _contained and _contained.open_limits:
        file_s = base_s + size_bytes / BYTES_A_SECOND
        _limit_cpu(time.process_time() + _contained.files_at_once * file_s)


def _limit_cpu(cpu_limit_s: float | None) -> None:
    """Limit this process to `cpu_limit_s` of CPU; a higher limit stays. None = no limit."""
    import resource  # noqa: PLC0415 - other systems lack it

    if not (_contained and _contained.may_end):  # a limit was set from outside
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if cpu_limit_s is None:
        resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, hard))
    elif soft == resource.RLIM_INFINITY or cpu_limit_s > soft:
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_limit_s) + 1, hard))


def try_files(paths: Sequence[Path], options: Sequence[str]) -> dict[str, str]:
    """Try each file of some runs in a process of its own; return reasons to leave out, by path.

    Args:
        paths: Files, or folders of them.
        options: How they are read, as on the command line.

    Where that is impossible (systems other than Linux), nothing is.
    """
    if sys.platform != "linux":
        return {}
    import json  # noqa: PLC0415 - seldom needed
    import subprocess  # noqa: PLC0415

    request = {"places": [os.fspath(path) for path in paths], "options": list(options)}
    process = subprocess.run(
        [sys.executable, "-m", "tracelens.cli.trials"],
        check=True,
        input=json.dumps(request),
        stdout=subprocess.PIPE,
        text=True,
    )
    reasons: dict[str, str] = json.loads(process.stdout)
    return reasons
