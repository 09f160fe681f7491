"""Facts of the machine on which recorder and reader must agree: its name, clock, processes and cores.

And a note in the trace folder that names the host of a process's live segments: where the
trace folder is on a network file system, segments are recorded on a disk of the host, and only the
Arrow file is written to the trace folder, when recording has ended. The note holds a JSON object.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tracelens.errors import NotATrace, TraceNotFound
from tracelens.schema.gate import open_regular
from tracelens.schema.json_text import dumps, loads

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def clock_domain() -> str:
    """Name the monotonic clock of this process: processes with equal names share one.

    A boot has one clock, and a time namespace may shift it.
    """
    return f"{_boot_id()}/{_time_namespace()}"


def host_name() -> str:
    """Return the name of this machine."""
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")


def allowed_cores() -> str | None:
    """Return the cores on which this process may run, such as ``0-3,8``; None if nothing tells."""
    try:
        status = (_PROC / "self" / "status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    label = "Cpus_allowed_list:"
    return next((line[len(label) :].strip() for line in status if line.startswith(label)), None)


def core_quota() -> float | None:
    """Return the cores' time that the control groups of this process allow; None without a limit."""
    try:
        lines = (_PROC / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    quotas: list[float] = []
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = _CGROUPS / "cpu" if controllers else _CGROUPS  # version 1: a tree per controller
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root):
                quotas += _read_quotas(folder)
    return min(quotas, default=None)


def _read_quotas(group: Path) -> Iterator[float]:
    """Yield the limit of one control group, by the files of either version."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            texts = [(group / name).read_text(encoding="utf-8") for name in names]
            quota, period = map(int, " ".join(texts).split())
        except (OSError, ValueError):  # "max" stands for no limit
            continue
        if quota > 0 and period > 0:
            yield quota / period


def process_started_ns(pid: int) -> int | None:
    """Return the wall time at which a process of this machine started, ns; None if it does not exist.

    All processes get the same time. It is up to a second early, because the kernel rounds the boot time
    down to whole seconds.
    """
    try:
        stat = (_PROC / "stat").read_text(encoding="utf-8")
        booted = next(line for line in stat.splitlines() if line.startswith("btime "))
        return int(booted.split()[1]) * 10**9 + _started_after_boot_ns(pid)
    except (OSError, StopIteration, IndexError, ValueError):
        return None


def process_age_ns(pid: int) -> int | None:
    """Return for how long a process of this machine has existed, to 10 ms, ns; None if it does not."""
    try:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - _started_after_boot_ns(pid)
    except (OSError, IndexError, ValueError, AttributeError):
        return None


def _started_after_boot_ns(pid: int) -> int:
    fields = (_PROC / str(pid) / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[19]) * 10**9 // os.sysconf("SC_CLK_TCK")


def _boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _time_namespace() -> str:
    try:
        return os.readlink(_PROC / "self/ns/time")  # noqa: PTH115 - it is not a path
    except OSError:
        return ""


_MOST_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class Elsewhere:
    """Where segments are: the host, and the path of the folder on it."""

    host: str
    path: str


def leave_note(note: Path, folder: Path) -> None:
    """Write the new file `note`: the segments are in `folder` on this host.

    Raises:
        FileExistsError: there is such a file.
        OSError: it cannot be written.
    """
    text = dumps(asdict(Elsewhere(host_name(), str(folder)))) + "\n"
    descriptor = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def read_note(note: Path) -> Elsewhere:
    """Read a note.

    Raises:
        NotATrace: it is no such note.
    """
    try:
        with open_regular(note) as file:
            row = loads(file.read(_MOST_BYTES))
        return Elsewhere(str(row["host"]), str(row["path"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotATrace(f"it does not say where its segments lie ({error!r})") from error


def find_segments(note: Path) -> Path:
    """Return the segments folder that a note names.

    Raises:
        NotATrace: it is no such note.
        TraceNotFound: the folder is on another host, or gone.
    """
    elsewhere = read_note(note)
    folder = Path(elsewhere.path)
    if folder.is_dir():
        return folder
    if elsewhere.host != host_name():
        raise TraceNotFound(
            f"its events are still on host {elsewhere.host}, in {elsewhere.path}: they are copied here "
            "when its process ends, or when 'tracelens info' reads this trace there"
        )
    raise TraceNotFound(
        f"its events were on this host, in {elsewhere.path}, and are not there any more"
    )
