"""How recorded processes end: the kernel makes a file descriptor of each readable at its end."""

from __future__ import annotations

import os
import select
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracelens.schema.life import Exited
from tracelens.watch.processes import (
    ENDED_STATES,
    find_out_of_memory_files,
    read_exit_status,
    read_out_of_memory_kills,
    read_state,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.schema.side import Process

__all__ = ["ExitWatch"]

# PIDFD_GET_INFO of <linux/pidfd.h>, since Linux 6.13; with PIDFD_INFO_EXIT, since 6.15, it has the exit
# status also after the process was waited for.

_GET_INFO: Final = 0xC040FF0B  # number: of the request [definition]
_INFO_EXIT: Final = 1 << 3  # bit: of the mask [definition]
_INFO: Final = struct.Struct("@Q52xi")  # mask, ..., exit status
_SIGKILL: Final = 9  # number: of the signal [definition]


@dataclass(eq=False)
class _Watched:
    """A running process: its descriptor (-1 without one), and kills for want of memory so far."""

    process: Process
    descriptor: int
    memory_files: tuple[Path, ...]
    memory_kills: int


class ExitWatch:
    """Waits for the ends of processes of this host."""

    def __init__(self) -> None:
        self._watched: list[_Watched] = []
        self._poller = select.poll()
        self._other_descriptors: set[int] = set()

    def add(self, process: Process) -> None:
        """Watch a process; one that has ended already is reported as such, without an exit code."""
        descriptor = _open_process(process)
        if descriptor >= 0:
            self._poller.register(descriptor, select.POLLIN)
        files = find_out_of_memory_files(process.pid)
        kills = read_out_of_memory_kills(files)
        self._watched.append(_Watched(process, descriptor, files, kills))

    def add_other(self, pid: int) -> bool:
        """Also end a wait when this process ends; return False if the system cannot tell."""
        descriptor = _open_descriptor(pid)
        if descriptor >= 0:
            self._poller.register(descriptor, select.POLLIN)
            self._other_descriptors.add(descriptor)
        return descriptor >= 0

    def rename(self, process: Process) -> None:
        """Note what a watched process has learned of itself since: its rank, as a rule."""
        for watched in self._watched:
            known = watched.process
            if (known.pid, known.incarnation) == (process.pid, process.incarnation):
                watched.process = process

    @property
    def watched(self) -> list[Process]:
        """The processes that have not ended."""
        return [watched.process for watched in self._watched]

    def wait(self, timeout_s: float) -> tuple[list[Exited], bool]:
        """Wait until a process ends, for at most `timeout_s`.

        Returns the watched processes that have ended, and whether another one has.
        """
        ready = {number for number, _ in self._poller.poll(max(timeout_s, 0) * 1000)}
        others_ended = self._other_descriptors & ready
        for number in others_ended:
            self._poller.unregister(number)
            self._other_descriptors.remove(number)
            os.close(number)
        now_ns = time.time_ns()
        ended = [watched for watched in self._watched if self._has_ended(watched, ready)]
        self._watched = [watched for watched in self._watched if watched not in ended]
        entries = [self._describe(watched, now_ns) for watched in ended]
        return entries, bool(others_ended)

    def close(self) -> None:
        """Close all descriptors."""
        for number in [
            *self._other_descriptors,
            *(watched.descriptor for watched in self._watched),
        ]:
            if number >= 0:
                os.close(number)
        self._watched.clear()
        self._other_descriptors.clear()

    def _has_ended(self, watched: _Watched, ready: set[int]) -> bool:
        if watched.descriptor >= 0:
            return watched.descriptor in ready
        return read_state(watched.process.pid, watched.process.incarnation) in ENDED_STATES

    def _describe(self, watched: _Watched, now_ns: int) -> Exited:
        """Describe how a watched process ended, and stop watching it."""
        process = watched.process
        status = _read_exit_info(watched.descriptor)
        if status is None:
            status = read_exit_status(process.pid)
        code = None if status is None else os.waitstatus_to_exitcode(status)
        if watched.descriptor >= 0:
            self._poller.unregister(watched.descriptor)
            os.close(watched.descriptor)
        has_kills = read_out_of_memory_kills(watched.memory_files) > watched.memory_kills
        return Exited(
            at_ns=now_ns,
            role=process.role,
            rank=process.rank,
            host=process.host,
            pid=process.pid,
            incarnation=process.incarnation,
            code=code,
            is_out_of_memory=has_kills and code in {None, -_SIGKILL},
        )


def _open_process(process: Process) -> int:
    """Return a descriptor of the process itself, not of a later one with its number; -1 without."""
    descriptor = _open_descriptor(process.pid)
    if descriptor >= 0 and read_state(process.pid, process.incarnation) == "gone":
        os.close(descriptor)
        return -1
    return descriptor


def _open_descriptor(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError, OverflowError):  # it has ended, or another system
        return -1


def _read_exit_info(descriptor: int) -> int | None:
    """Return the wait status of an ended process from its descriptor; None if the kernel is older."""
    if descriptor < 0:
        return None
    from fcntl import ioctl  # noqa: PLC0415 - not on every system

    buffer = bytearray(_INFO.size)
    _INFO.pack_into(buffer, 0, _INFO_EXIT, 0)
    try:
        ioctl(descriptor, _GET_INFO, buffer)
    except OSError:
        return None
    mask, status = _INFO.unpack(buffer)
    return int(status) if mask & _INFO_EXIT else None
