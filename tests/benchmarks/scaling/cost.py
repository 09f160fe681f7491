"""What a command takes: CPU and wall time, memory of its processes, files that they have open.

CPU seconds are those of the whole process and of all that it waited for, from the kernel (`wait4`).

Memory is the sum of the proportional set sizes (PSS) of the process and all below it: what several of
them share, as libraries and mapped files, counts once. It is sampled, so the high-water mark of the
largest single process, which the kernel keeps exactly, counts where it is higher. (A control group
would need rights that not every machine gives, and counts files that the system only caches.) A child
begins with the high-water mark of whoever starts it, so whoever measures must be small: this imports no
library. Open files are sampled five times as often as memory.
"""

from __future__ import annotations

import os
import resource
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["GIB", "Cost", "Failed", "descendants", "measure_command"]

GIB: Final = 1 << 30
_EVERY_S: Final = 0.01
_MEMORY_EVERY_S: Final = 0.05
_MOST_SHARE: Final = (
    0.1  # of a processor that looking may take: mapped pages are counted one by one
)


class Failed(Exception):
    """A command ended with something else than 0; the text says which, and what it printed last."""


@dataclass(frozen=True)
class Cost:
    """What a command took: seconds, bytes at the peak, files of the trace open at once."""

    cpu: float
    wall: float
    peak: int
    files: int

    def __str__(self) -> str:
        return (
            f"CPU {self.cpu:7.2f} s   wall {self.wall:7.2f} s   peak {self.peak / GIB:5.2f} GiB   "
            f"{self.files} files open"
        )


def measure_command(
    command: Sequence[str],
    output: Path,
    *,
    trace: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Cost:
    """Run a command to its end, and measure it.

    What it prints goes to `output`, its errors beside it. Open files below `trace` are counted.

    Raises:
        Failed: it did not end with 0.
    """
    errors = output.with_suffix(".errors")
    started = time.perf_counter()
    with output.open("wb") as printed, errors.open("wb") as complaints:
        child = subprocess.Popen(command, stdout=printed, stderr=complaints, env=environment)
        watch = _Watch(child.pid, trace)
        watch.start()
        _, status, used = os.wait4(child.pid, 0)
    wall = time.perf_counter() - started
    watch.stop()
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        last = errors.read_text(errors="replace").strip()[-2000:]
        raise Failed(f"{' '.join(command)} ended with {child.returncode}: {last}")
    # A child begins as a copy of this process, whose size the kernel then takes for its mark.
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mark = used.ru_maxrss if used.ru_maxrss > own else 0
    peak = max(watch.peak, mark << 10)
    return Cost(used.ru_utime + used.ru_stime, wall, peak, watch.files)


class _Watch(threading.Thread):
    """Samples a process and all below it until it is stopped."""

    def __init__(self, process: int, trace: Path | None) -> None:
        super().__init__(daemon=True)
        self.peak = self.files = 0
        self._process, self._trace = process, trace
        self._ended = threading.Event()

    def run(self) -> None:
        processes, due = [self._process], 0.0
        while not self._ended.wait(_EVERY_S):
            if time.monotonic() >= due:
                began = time.thread_time()
                processes = [self._process, *descendants(self._process)]
                self.peak = max(self.peak, sum(map(_proportional, processes)))
                took = time.thread_time() - began
                due = time.monotonic() + max(_MEMORY_EVERY_S, took / _MOST_SHARE)
            if self._trace:
                self.files = max(self.files, sum(_open_below(self._trace, p) for p in processes))

    def stop(self) -> None:
        self._ended.set()
        self.join()


def descendants(process: int) -> Iterator[int]:
    """Yield all processes below one."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    pending = list(children.get(process, ()))
    while pending:
        child = pending.pop()
        yield child
        pending += children.get(child, ())


def _parents() -> Iterator[tuple[int, int]]:
    """Yield each process of the machine with its parent."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text(errors="replace")
            except OSError:  # it has ended
                continue
            yield int(entry.name), int(stat.rpartition(")")[2].split()[1])


def _proportional(process: int) -> int:
    """Return a process's proportional set size in bytes; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)


def _open_below(folder: Path, process: int) -> int:
    """Count the descriptors by which a process has files of a folder open."""
    prefix, count = f"{folder.resolve()}/", 0
    try:
        with os.scandir(f"/proc/{process}/fd") as entries:
            for entry in entries:
                count += str(Path(entry.path).readlink()).startswith(prefix)
    except OSError:  # it has ended, or closed one meanwhile
        return count
    return count
