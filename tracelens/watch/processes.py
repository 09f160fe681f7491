"""What the system says of the processes of a job: state, children, kills for want of memory."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens.schema.host import host_name, process_started_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.schema.side import Process

__all__ = [
    "ENDED_STATES",
    "find_children",
    "find_out_of_memory_files",
    "is_descendant",
    "is_on_this_host",
    "read_cpu_ns",
    "read_environment",
    "read_name",
    "read_out_of_memory_kills",
    "read_queued_ns",
    "read_state",
]

_PROC: Final = Path("/proc")
_CGROUPS: Final = Path("/sys/fs/cgroup")
# ns: the kernel gives start times in ticks, relative to a whole second [definition]
_START_SLACK_NS: Final = 2 * 10**9
_STATES: Final = {
    "R": "running",
    "S": "sleeping",
    "I": "sleeping",
    "D": "uninterruptible",
    "T": "stopped",
    "t": "traced",  # py-spy looks into it
    "Z": "zombie",
    "X": "gone",
}
ENDED_STATES: Final = ("zombie", "gone")
MAX_PROCESSES_KNOWN: Final = 4096  # processes: the start of no more is remembered [policy]
_MAX_ANCESTORS: Final = 64  # processes: the search for an ancestor is given up then [policy]


def is_on_this_host(process: Process) -> bool:
    """Return True if a process ran on this host, so that its state can be read."""
    return process.host == host_name()


def read_state(pid: int, incarnation: int = 0) -> str | None:
    """Return the state of a process of this host in one word; None if nothing tells.

    Args:
        pid: Its number.
        incarnation: When it began to record, wall time in ns: a process that started later is another
            one that got its number. 0: any process.
    """
    fields = _read_stat(pid)
    if fields is None:
        return "gone" if _PROC.is_dir() else None
    if incarnation and not _is_recorder(pid, fields[19], incarnation):
        return "gone"
    return _STATES.get(fields[0])


@lru_cache(maxsize=MAX_PROCESSES_KNOWN)
def _is_recorder(pid: int, _start_ticks: str, incarnation: int) -> bool:
    """Return True if a process existed when it is said to have begun to record.

    A process with the same number and the same start is the same one, so it is asked once.
    """
    started_ns = process_started_ns(pid)
    return started_ns is not None and started_ns <= incarnation + _START_SLACK_NS


def find_children(pid: int) -> dict[int, tuple[str, str]]:
    """Return the children of a process: name and state by pid."""
    children: dict[int, tuple[str, str]] = {}
    for path in (_PROC / str(pid) / "task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, path.read_text(encoding="ascii").split()):
                state = read_state(child)
                if state is not None:
                    children[child] = (read_name(child), state)
    return children


def is_descendant(pid: int, ancestor: int) -> bool:
    """Return True if a process is another one, or was started by it or its descendants."""
    for _ in range(_MAX_ANCESTORS):
        if pid == ancestor:
            return True
        fields = _read_stat(pid)
        if fields is None or pid <= 1:
            return False
        pid = int(fields[1])
    return False


def find_out_of_memory_files(pid: int) -> tuple[Path, ...]:
    """Return the files that count kills for want of memory, of a control group and of the kernel."""
    files = []
    with suppress(OSError):
        for line in (_PROC / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines():
            controllers, _, path = line.partition(":")[2].partition(":")
            if not controllers:
                roots = (_CGROUPS, _CGROUPS / "unified")
                files += [root / path.lstrip("/") / "memory.events" for root in roots]
            elif "memory" in controllers.split(","):
                files.append(_CGROUPS / "memory" / path.lstrip("/") / "memory.oom_control")
    return (*(file for file in files if file.exists()), _PROC / "vmstat")


def read_out_of_memory_kills(files: tuple[Path, ...]) -> int:
    """Return the number of processes killed for want of memory, by the counters in some files."""
    return sum(count for file in files for count in _read_counts(file))


def read_cpu_ns(pid: int) -> int:
    """Return for how long all threads of a process have run on a core, ns; 0 if it has ended."""
    fields = _read_stat(pid)
    if fields is None:
        return 0
    ticks = int(fields[11]) + int(fields[12])  # as a user and in the kernel
    return ticks * 10**9 // os.sysconf("SC_CLK_TCK")


def read_environment(pid: int) -> str:
    """Return the variables with which a process was started, apart by NUL; empty if it has ended."""
    try:
        return (_PROC / str(pid) / "environ").read_text(encoding="utf-8", errors="replace")
    except OSError:  # or it is another user's
        return ""


def read_queued_ns(pid: int) -> dict[int, int]:
    """Read the time for which each thread of a process has waited for a core, ready to run, ns.

    Empty if the kernel does not report it.
    """
    queued_ns_by_thread = {}
    for path in (_PROC / str(pid) / "task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):
            queued_ns_by_thread[int(path.parent.name)] = int(
                path.read_text(encoding="ascii").split()[1]
            )
    return queued_ns_by_thread


def _read_counts(file: Path) -> Iterator[int]:
    with suppress(OSError, ValueError):
        for line in file.read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                yield int(value)


def _read_stat(pid: int) -> list[str] | None:
    """Return the fields of a process from its state on; None if it does not exist."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()


def read_name(pid: int) -> str:
    """Return the name of a process' program, cut off after 15 characters; empty if unknown."""
    try:
        return (_PROC / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def read_exit_status(pid: int) -> int | None:
    """Return the wait status of a zombie, as far as this user may read it; None of others."""
    fields = _read_stat(pid)
    if fields is None or fields[0] != "Z":
        return None
    status = int(fields[49])
    return status if status or os.geteuid() == 0 else None
