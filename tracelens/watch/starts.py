"""Ranks that were started and do not record yet: one may wait for another before its first event.

A launcher gives each process its rank by the environment, and `record` the trace folder. Both are
read in /proc. Imports, compilation and loading take minutes, so it is a fact, and no alarm.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens.schema.host import process_started_ns
from tracelens.schema.launchers import read_launcher
from tracelens.watch.pauses import START, UNKNOWN_LIMITS_NS
from tracelens.watch.processes import read_cpu_ns, read_environment, read_name
from tracelens.watch.stacks import StackDumps, Stacks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.watch.job import LiveJob

__all__ = ["Absence", "StartWatch", "StartedRank", "find_pids", "find_started_ranks"]

# ns: the processes of this host are looked through so often, as long as ranks are missing [policy]
LOOK_EVERY_NS: Final = 5 * 10**9
# ns: ranks that have not computed for so long wait for something [chosen]
MIN_IDLE_NS: Final = 30 * 10**9
# share of a core: a process that computes less is idle, such as one that polls [chosen]
MAX_CPU_SHARE_IF_IDLE: Final = 0.02
MAX_STACKS: Final = 8  # processes: the stacks of those that computed least are taken [policy]
_FOLDER_VARIABLE: Final = "TRACELENS_DIR"
_PROC: Final = Path("/proc")


@dataclass(frozen=True)
class StartedRank:
    """A process that a launcher made a rank; `started_ns` is wall time."""

    rank: int
    world: int
    pid: int
    started_ns: int


class _CpuReading(NamedTuple):
    """The CPU time of a process so far, and when it was read."""

    at_ns: int
    cpu_ns: int


@dataclass(frozen=True)
class Absence:
    """Ranks (`ranks`) that do not record `waited_ns` after the last of them was started.

    `world` is how many ranks there should be. `idle_ranks` have all not computed for `idle_ns`; others
    may compute because they wait actively, as in MPI. `cpu_ns` is for how long each rank has computed in
    all, by rank. `unseen` are ranks without a process on this host. `stacks` are by rank.
    """

    ranks: tuple[int, ...]
    world: int
    waited_ns: int
    idle_ranks: tuple[int, ...]
    idle_ns: int
    cpu_ns: dict[int, int]
    unseen: tuple[int, ...]
    stacks: Stacks

    def to_facts(self) -> dict[str, object]:
        """Return the fields for JSON: stacks as lists of frames, by rank."""
        return {
            "ranks": self.ranks,
            "world": self.world,
            "waited_ns": self.waited_ns,
            "idle_ranks": self.idle_ranks,
            "idle_ns": self.idle_ns,
            "cpu_ns": {str(rank): ns for rank, ns in self.cpu_ns.items()},
            "unseen": self.unseen,
            "stacks": self.stacks.frames,
        }


class StartWatch:
    """Tells once of each group of processes that they do not begin to record."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._next_look_ns = 0
        self._last_cpu: dict[int, _CpuReading] = {}  # by pid
        self._idle_since_ns: dict[int, int] = {}  # by pid
        self._reported_pids: frozenset[int] = frozenset()
        self._pending: tuple[Absence, StackDumps] | None = None

    def look(self, job: LiveJob, now_ns: int) -> Absence | None:
        """Look if it is time; return ranks that do not record after a time that is long for a start."""
        if self._pending is not None:
            return self._finish()
        recording_pids = {member.process.pid for member in job.all_processes if not member.is_over}
        if now_ns < self._next_look_ns or (job.world and len(recording_pids) >= job.world):
            return None
        self._next_look_ns = now_ns + LOOK_EVERY_NS
        known_pids = {member.process.pid for member in job.all_processes}
        started = find_started_ranks(self._folder)
        missing = {
            rank: process for rank, process in started.items() if process.pid not in known_pids
        }
        self._note_cpu(missing, now_ns)
        pids = frozenset(process.pid for process in missing.values())
        if not missing or pids <= self._reported_pids:
            return None
        waited_ns = now_ns - max(process.started_ns for process in missing.values())
        idle_ns = {
            rank: now_ns - self._idle_since_ns[process.pid] for rank, process in missing.items()
        }
        idle_ns = {rank: ns for rank, ns in idle_ns.items() if ns >= MIN_IDLE_NS}
        if not idle_ns and waited_ns < UNKNOWN_LIMITS_NS[START]:
            return None
        self._reported_pids = pids
        self._begin(job, missing, set(started), waited_ns, idle_ns)
        return self._finish()

    def close(self) -> None:
        """End what still runs."""
        if self._pending is not None:
            self._pending[1].stop("the watch ended before")
            self._pending = None

    def _begin(
        self,
        job: LiveJob,
        missing: Mapping[int, StartedRank],
        started_ranks: set[int],
        waited_ns: int,
        idle_ns: Mapping[int, int],
    ) -> None:
        """Describe the missing ranks, and begin to take the stacks of those that computed least."""
        cpu_ns = {rank: self._last_cpu[process.pid].cpu_ns for rank, process in missing.items()}
        world = max(process.world for process in missing.values())
        seen_ranks = started_ranks | set(job.ranks) | set(job.other_hosts)
        chosen_ranks = sorted(missing, key=lambda rank: cpu_ns[rank])[:MAX_STACKS]
        dumps = StackDumps({str(rank): missing[rank].pid for rank in chosen_ranks}, is_quick=True)
        absence = Absence(
            ranks=tuple(sorted(missing)),
            world=world,
            waited_ns=waited_ns,
            idle_ranks=tuple(sorted(idle_ns)),
            idle_ns=min(idle_ns.values(), default=0),
            cpu_ns=cpu_ns,
            unseen=tuple(sorted(set(range(world)) - seen_ranks)),
            stacks=Stacks({}, {}),
        )
        self._pending = absence, dumps

    def _finish(self) -> Absence | None:
        """Return the ranks that are missing when their stacks are known."""
        assert self._pending is not None
        absence, dumps = self._pending
        stacks = dumps.advance()
        if stacks is None:
            return None
        self._pending = None
        return replace(absence, stacks=stacks)

    def _note_cpu(self, missing: Mapping[int, StartedRank], now_ns: int) -> None:
        """Note since when each missing rank has not computed."""
        last_cpu, self._last_cpu = self._last_cpu, {}
        for process in missing.values():
            reading = _CpuReading(now_ns, read_cpu_ns(process.pid))
            last = last_cpu.get(process.pid, reading)
            computed_ns, passed_ns = reading.cpu_ns - last.cpu_ns, reading.at_ns - last.at_ns
            is_idle = computed_ns <= MAX_CPU_SHARE_IF_IDLE * passed_ns
            if process.pid not in last_cpu or not is_idle:
                self._idle_since_ns[process.pid] = now_ns
            self._last_cpu[process.pid] = reading


def find_started_ranks(folder: Path) -> dict[int, StartedRank]:
    """Return the process of each rank that a launcher started on this host to record into a folder.

    Args:
        folder: The trace folder, an absolute path.
    """
    ranks: dict[int, StartedRank] = {}
    for pid in _list_pids():
        environment = _read_variables(pid, folder)
        launcher = None if environment is None else read_launcher(environment)
        started_ns = None if launcher is None else process_started_ns(pid)
        if launcher is None or started_ns is None:
            continue
        rank, world, _ = launcher
        process = StartedRank(rank, world, pid, started_ns)
        known_process = ranks.get(rank)
        if known_process is None or _precedence_of(process) < _precedence_of(known_process):
            ranks[rank] = process
    return ranks


def find_pids(folder: Path) -> list[int]:
    """Return the processes of this host that were started to record into a folder, with a rank or not.

    Args:
        folder: The trace folder, an absolute path.
    """
    return [pid for pid in _list_pids() if _read_variables(pid, folder) is not None]


def _precedence_of(process: StartedRank) -> tuple[bool, int, int]:
    """Order the processes of a rank: Python before a shell around it, parents before children."""
    return not read_name(process.pid).startswith("python"), process.started_ns, process.pid


def _list_pids() -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(_PROC) if name.isdecimal())  # noqa: PTH208 - names are enough
    except OSError:
        return []


def _read_variables(pid: int, folder: Path) -> dict[str, str] | None:
    """Return the environment with which a process was started; None if it records elsewhere."""
    content = read_environment(pid)
    entries = content.split("\0")
    if f"{_FOLDER_VARIABLE}={folder}" not in entries:
        return None
    pairs = (entry.partition("=") for entry in entries)
    return {name: value for name, _, value in pairs}
