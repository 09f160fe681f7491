"""Which clock and which process: facts of the machine that recorder and reader must see alike."""

from __future__ import annotations

import os

from tracelens.schema.light_path import Path

__all__ = ["clock_domain", "host_name", "process_started_ns"]

_PROC = Path("/proc")


def clock_domain() -> str:
    """Name the monotonic clock of this process: processes with equal names share one.

    A boot has one clock, and a time namespace may shift it.
    """
    return f"{_boot_id()}/{_time_namespace()}"


def host_name() -> str:
    """Return the name of this machine."""
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")


def process_started_ns(pid: int) -> int | None:
    """Wall time at which process `pid` of this machine started; None if there is none such."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        stat = (_PROC / "stat").read_text()
        booted = next(line for line in stat.splitlines() if line.startswith("btime "))
        ticks_per_second = os.sysconf("SC_CLK_TCK")
        return int(booted.split()[1]) * 10**9 + int(fields[19]) * 10**9 // ticks_per_second
    except (OSError, StopIteration, IndexError, ValueError):
        return None


def _boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _time_namespace() -> str:
    try:
        return os.readlink(_PROC / "self/ns/time")  # noqa: PTH115 - it is not a path
    except OSError:
        return ""
