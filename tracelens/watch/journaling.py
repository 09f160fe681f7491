"""Writes down the life of a recorded command: its start and end, and how its processes end.

The parent of the command does this while it waits. Nothing here may fail the command, so what cannot be
written is left out.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tracelens.errors import UnusableInput
from tracelens.schema.gate import open_regular
from tracelens.schema.host import find_segments, host_name
from tracelens.schema.launchers import StartedProcess
from tracelens.schema.life import Ended, Journal, Launched, Signalled
from tracelens.schema.ownership import belongs_to
from tracelens.schema.side import Process, parse_lines
from tracelens.schema.vocabulary import ELSEWHERE_SUFFIX, SEGMENTS_SUFFIX, SIDE_FILE
from tracelens.watch.exits import ExitWatch
from tracelens.watch.processes import is_descendant, is_on_this_host, read_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from io import FileIO
    from pathlib import Path
    from typing import Self

    from tracelens.schema.life import Entry, Exited

__all__ = ["CommandJournal", "JobExits"]

# seconds: new recordings are looked for so often [policy; one decision in CommandJournal.wait_for,
# CommandJournal.end]
LOOK_EVERY_S: Final = 0.5
# seconds: processes that end after the command are waited for [policy]
GRACE_S: Final = 1.0
# ns: a process of some frameworks learns its rank after it began to record, but not later [chosen]
RANK_KNOWN_AFTER_NS: Final = 60 * 10**9
# ns: clocks of a host may be set back a little between two readings [chosen]
_CLOCK_SLACK_NS: Final = 10**9
# bytes: the lines of a side file that name its process are looked for in these [policy]
_MAX_BYTES_OF_HEAD: Final = 1 << 16
_PROCESS_LINE: Final = b'{"table":"process"'


class JobExits:
    """Finds the recorded processes of a trace folder on this host, and notices their ends.

    `has_found` says that there was one. Processes of ranks that started and do not record are watched,
    too, if they report their start.
    """

    def __init__(self, folder: Path, is_ours: Callable[[Process], bool]) -> None:
        """Watch the journal of a folder; `is_ours` returns True for a process of the watched job."""
        self._folder = folder
        self._is_ours = is_ours
        self._begun_ns: dict[str, int] = {}
        self.has_found = False
        self.exits = ExitWatch()
        self._starts: FileIO | None = None
        self._started: set[tuple[int, int]] = set()  # pid and incarnation

    def follow_starts(self, path: Path) -> None:
        """Read the starts of ranks from this file from now on."""
        with suppress(OSError, UnusableInput):
            self._starts = open_regular(path)

    def find_started(self) -> None:
        """Watch the processes of ranks that reported their start since."""
        for line in () if self._starts is None else self._starts.readlines():
            start = StartedProcess.parse(line.decode(errors="replace").rstrip("\n"))
            if start is not None:
                self._started.add((start.pid, start.started_ns))
                self.exits.add(
                    Process(
                        rank=start.rank,
                        world=start.world,
                        host=host_name(),
                        pid=start.pid,
                        incarnation=start.started_ns,
                    )
                )

    def wait(self, timeout_s: float) -> tuple[list[Exited], bool]:
        """Wait until a process ends, for at most `timeout_s`.

        Returns the processes that have ended, and whether the command has. A process that left no
        recording counts only if it failed.
        """
        entries, has_ended = self.exits.wait(timeout_s)
        recorded_entries = [entry for entry in entries if not self._is_start(entry)]
        failed_starts = [
            replace(entry, has_recorded=False)
            for entry in entries
            if self._is_start(entry) and entry.code != 0 and not self._has_recorded(entry)
        ]
        return recorded_entries + failed_starts, has_ended

    @property
    def watched(self) -> list[Process]:
        """The recorded processes that have not ended."""
        return [process for process in self.exits.watched if not self._is_start(process)]

    def close(self) -> None:
        """Close all files."""
        self.exits.close()
        if self._starts is not None:
            self._starts.close()

    def _is_start(self, process: Process | Exited) -> bool:
        return (process.pid, process.incarnation) in self._started

    def _has_recorded(self, entry: Exited) -> bool:
        """Return True if a process left a recording, by the names in the folder."""
        mark = f"-{entry.pid}."
        with suppress(OSError), os.scandir(self._folder) as names:
            return any(mark in name.name for name in names)
        return False

    def find_new(self) -> None:
        """Watch the processes whose recordings appeared since."""
        with suppress(OSError), os.scandir(self._folder) as entries:
            names = [entry.name for entry in entries]
            for name in names:
                if name.endswith((SEGMENTS_SUFFIX, ELSEWHERE_SUFFIX)):
                    self._look_at(name)

    def _look_at(self, name: str) -> None:
        """Watch the process of a recording; of a young one look whether it knows its rank by now."""
        begun_ns = self._begun_ns.get(name)
        if begun_ns is not None and time.time_ns() - begun_ns > RANK_KNOWN_AFTER_NS:
            return
        process = _read_process(self._folder, name)
        if process is None:
            return
        if begun_ns is not None:
            self.exits.rename(process)
            return
        self._begun_ns[name] = time.time_ns()
        if is_on_this_host(process) and self._is_ours(process):
            self.has_found = True
            self.exits.add(process)


class CommandJournal:
    """Journals a command that records to a folder; the journal appears with the first recording."""

    def __init__(self, folder: Path, command: str, *, among_ranks: bool) -> None:
        """Note when the command begins.

        Args:
            folder: The trace folder, which need not exist yet.
            command: The program that is run.
            among_ranks: The command is a single rank; its launcher starts similar commands for others.
        """
        self._folder = folder
        self._command = command
        self._signals: list[Signalled] = []
        self._among_ranks = among_ranks
        self._launched_ns = time.time_ns()
        self._pid = 0
        self._journal: Journal | None = None
        self._pending: list[Entry] = []  # until there is a journal
        self._jobs = JobExits(folder, self._is_ours)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._jobs.close()

    def wait_for(
        self,
        pid: int,
        on_look: Callable[[list[Exited]], None] | None = None,
        starts: Path | None = None,
    ) -> None:
        """Wait until the command has ended, and journal how its processes end meanwhile.

        Return before if the system cannot tell, or if the journal fails.

        Args:
            pid: That of the command.
            on_look: Called at each look, with the processes that have ended since the last one.
            starts: The file to which ranks report their start.
        """
        self._pid = pid
        if starts is not None:
            self._jobs.follow_starts(starts)
        try:
            has_ended = not self._jobs.exits.add_other(pid)
            while not has_ended:
                self._jobs.find_started()
                self._jobs.find_new()
                ended_processes, has_ended = self._jobs.wait(LOOK_EVERY_S)
                self._append(ended_processes)
                if on_look is not None:
                    on_look(ended_processes)
        except Exception as error:  # noqa: BLE001 - whatever it is, the command goes on
            sys.stderr.write(f"tracelens: the journal has failed and ends ({error!r})\n")

    def note_signal(self, name: str, *, is_key: bool) -> None:
        """Note that we got a signal; a handler calls this, and the journal is written elsewhere."""
        parent = read_name(os.getppid())
        self._signals.append(Signalled(time.time_ns(), name, is_key, parent))

    def list_left_behind(self) -> list[Process]:
        """Return the recorded processes of this host that have not ended."""
        return self._jobs.watched

    def note_starts(self) -> None:
        """Journal the last ranks that started and failed without a recording."""
        self._jobs.find_started()
        self._jobs.find_new()
        ended_processes, _ = self._jobs.wait(0)
        self._append(ended_processes)

    def end(self, code: int) -> None:
        """Journal the end of the command, and of processes that end just after it."""
        ended_ns = time.time_ns()
        self._jobs.find_new()
        self._append([])
        end_s = time.monotonic() + GRACE_S
        while self._jobs.watched and time.monotonic() < end_s:
            ended_processes, _ = self._jobs.wait(LOOK_EVERY_S)
            self._append(ended_processes)
        if self._journal is not None:
            self._append([Ended(ended_ns, code)])

    def _append(self, entries: Sequence[Entry]) -> None:
        self._pending += entries
        with suppress(OSError):
            if self._journal is None and self._jobs.has_found:
                self._journal = Journal(self._folder)
                launched = Launched(self._launched_ns, host_name(), self._pid, self._command)
                self._journal.append(launched)
            if self._journal is not None:
                while self._signals:
                    self._journal.append(self._signals.pop(0))
                while self._pending:
                    self._journal.append(self._pending.pop(0))

    def _is_ours(self, process: Process) -> bool:
        if process.parent_rank_pid is not None:
            return False
        if self._among_ranks:
            return is_descendant(process.pid, self._pid)
        return process.incarnation >= self._launched_ns - _CLOCK_SLACK_NS


def _read_process(folder: Path, name: str) -> Process | None:
    """Return the process of a recording; None while it is not written yet, or not on this host."""
    try:
        path = folder / name
        if name.endswith(ELSEWHERE_SUFFIX):
            path = find_segments(path)
            if not belongs_to(path, folder):
                return None
        with open_regular(path / SIDE_FILE, "side") as file:
            lines = file.read(_MAX_BYTES_OF_HEAD).split(b"\n")
        return parse_lines(line for line in lines if line.startswith(_PROCESS_LINE)).process
    except (OSError, UnusableInput):
        return None
