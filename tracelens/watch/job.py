"""A running job: the newest process of each rank of a trace folder, read on once a second."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from tracelens.conversion.segments import find_folder
from tracelens.errors import TraceLensError
from tracelens.readers.native.arrow_file import read_end
from tracelens.readers.native.recordings import DAMAGE
from tracelens.schema.host import read_note
from tracelens.schema.ownership import belongs_to
from tracelens.schema.vocabulary import ELSEWHERE_SUFFIX, SEGMENTS_SUFFIX, TRACE_SUFFIX, parse_stem
from tracelens.watch.processes import ENDED_STATES, is_on_this_host, read_state
from tracelens.watch.recording import LiveRecording

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.schema.side import Process

__all__ = ["JobProcess", "LiveJob"]


@dataclass(eq=False)
class JobProcess:
    """A process of a job.

    `recording` is null for one whose recording had ended before it was first seen. `state` is that of
    the process (`processes.py`), null on other hosts. `is_complete`: it ended its recording itself.
    `is_over`: it records no more, complete or not. `step_count` is that of completed steps.
    """

    process: Process
    recording: LiveRecording | None
    path: Path
    state: str | None = None
    is_complete: bool = False
    is_over: bool = False
    summary_steps: int = 0

    @property
    def identity(self) -> tuple[str, int, int]:
        """What tells it from all other processes."""
        return self.process.host, self.process.pid, self.process.incarnation

    @property
    def step_count(self) -> int:
        """How many steps it has completed."""
        return self.summary_steps if self.recording is None else self.recording.step_count

    @property
    def progress_wall_ns(self) -> int:
        """When the training thread last made progress, wall time; before that when it began."""
        if self.recording is None or not self.recording.progress_ns:
            return self.process.incarnation
        return self.to_wall_ns(self.recording.progress_ns)

    @property
    def completed_wall_ns(self) -> int:
        """When the process last completed a step or a call, wall time; 0 before that."""
        if self.recording is None or not self.recording.completed_ns:
            return 0
        return self.to_wall_ns(self.recording.completed_ns)

    def to_wall_ns(self, monotonic_ns: int) -> int:
        """Return a time of its monotonic clock as wall time."""
        return monotonic_ns + (0 if self.recording is None else self.recording.wall_offset_ns)

    def look(self) -> None:
        """Read what is new, and ask the system for its state."""
        if self.recording is None or self.is_over:
            return
        self.state = (
            read_state(self.process.pid, self.process.incarnation)
            if is_on_this_host(self.process)
            else None
        )
        self.recording.look()  # after its state: of an ended process everything is read
        self.process = self.recording.process
        self.is_complete = self.recording.is_complete
        is_removed = self.state is None and not self.path.exists()
        if self.is_complete or is_removed or self.state in ENDED_STATES:
            self.is_over = True
            self.recording.close()


class LiveJob:
    """All processes that record, or recorded, to a trace folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: dict[tuple[str, int, int], JobProcess] = {}
        self._known_names: set[str] = set()
        self.other_hosts: dict[int, str] = {}  # of ranks whose live records are not on this host

    def look(self) -> None:
        """Find new recordings, and read on in all."""
        for name in self._list_names():
            if name not in self._known_names:
                self._open(name)
        for job_process in self._processes.values():
            job_process.look()

    def is_going_on(self) -> bool:
        """Check whether every process that records has recorded something since the last look."""
        running = [member for member in self._processes.values() if not member.is_over]
        return bool(running) and all(
            member.recording is not None and member.recording.has_new_records()
            for member in running
        )

    def close(self) -> None:
        """Close all files."""
        for job_process in self._processes.values():
            if job_process.recording is not None and not job_process.is_over:
                job_process.recording.close()

    def find(self, identity: tuple[str, int, int]) -> JobProcess | None:
        """Return a process by host, pid and incarnation."""
        return self._processes.get(identity)

    @property
    def all_processes(self) -> list[JobProcess]:
        """Every process of a rank, also earlier ones of ranks that were restarted, by their begin."""
        return sorted(self._processes.values(), key=lambda member: member.process.incarnation)

    @property
    def ranks(self) -> dict[int, JobProcess]:
        """The newest process of each worker rank, by rank."""
        newest = {
            member.process.rank: member
            for member in self.all_processes
            if member.process.role == "worker"
        }
        return dict(sorted(newest.items()))

    @property
    def servers(self) -> dict[int, JobProcess]:
        """The newest process of each parameter server, by rank."""
        return {
            member.process.rank: member
            for member in self.all_processes
            if member.process.role == "ps"
        }

    @property
    def world(self) -> int:
        """How many ranks there should be."""
        newest = max(self.all_processes, key=attrgetter("process.incarnation"), default=None)
        return 0 if newest is None else newest.process.world

    @property
    def is_over(self) -> bool:
        """Whether no process of this job records any more."""
        return bool(self._processes) and all(member.is_over for member in self._processes.values())

    def _list_names(self) -> list[str]:
        try:
            names = os.listdir(self.folder)  # noqa: PTH208 - names are enough
        except OSError:
            return []
        suffixes = (TRACE_SUFFIX, SEGMENTS_SUFFIX, ELSEWHERE_SUFFIX)
        return sorted(name for name in names if name.endswith(suffixes) and name[0] != ".")

    def _open(self, name: str) -> None:
        """Open a recording that was not seen before, and add its process to the job.

        A finished file is read, another one is followed while it grows. One that cannot be opened yet is
        tried again at the next look; one that is damaged is not.
        """
        path = self.folder / name
        try:
            job_process = (
                self._read_file(path) if name.endswith(TRACE_SUFFIX) else self._follow(path)
            )
        except (TraceLensError, OSError):
            return
        except DAMAGE:
            self._known_names.add(name)
            return
        self._known_names.add(name)
        if job_process is None:
            return
        if (
            job_process.process.parent_rank_pid is None
            and job_process.identity not in self._processes
        ):
            self._processes[job_process.identity] = job_process
        elif job_process.recording is not None:
            job_process.recording.close()

    def _follow(self, path: Path) -> JobProcess | None:
        """Open a recording that may grow; None if it is on another host."""
        if path.suffix == ELSEWHERE_SUFFIX:
            parsed = parse_stem(path.stem)
            with suppress(TraceLensError):
                folder = find_folder(path)
                if belongs_to(folder, self.folder):
                    recording = LiveRecording(folder)
                    return JobProcess(recording.process, recording, folder)
            if parsed is not None and parsed[0] == "worker":
                self.other_hosts[parsed[1]] = read_note(path).host
            return None
        recording = LiveRecording(path)
        return JobProcess(recording.process, recording, path)

    @staticmethod
    def _read_file(path: Path) -> JobProcess | None:
        """Read whose recording a finished file is; None if it cannot be read."""
        end = read_end(path)
        if end is None:
            return None
        return JobProcess(
            process=end.side_tables.process,
            recording=None,
            path=path,
            state="gone",
            is_complete=end.side_tables.complete,
            is_over=True,
            summary_steps=0 if end.summary is None else end.summary.steps,
        )
