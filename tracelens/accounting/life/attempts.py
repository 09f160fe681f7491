"""The attempts of a job: a launcher, a scheduler or a loop in a shell starts its ranks again.

The processes of an attempt live at the same time. A process of a rank that has had one in the attempt
begins a new attempt, unless most of the other ranks live on, as when one worker of a parameter server
comes back. All times are on the common clock.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tracelens.align.clocks.common import to_common_times
from tracelens.distil.outline import list_outlines
from tracelens.schema.life import Exited

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Ints
    from tracelens.model.trace import Trace


@dataclass(frozen=True)
class Life:
    """When a recorded process lived; `is_ended` is False for one that may still run.

    `failed_ns` is when it failed: when an exception or a signal ended it, or it was gone without having
    ended its recording; null if it did not. `exit_code` is negative for the number of a signal, and null
    if nobody saw it.
    """

    process: int
    rank: int
    begin_ns: int
    end_ns: int
    is_ended: bool
    failed_ns: int | None = None
    exit_code: int | None = None
    is_out_of_memory: bool = False


@dataclass(frozen=True, eq=False)
class Attempt:
    """Processes that lived together, by rank; `process` is that of the rank with most steps."""

    lives: tuple[Life, ...]
    process: int

    @property
    def begin_ns(self) -> int:
        """When the first of its processes began."""
        return min(life.begin_ns for life in self.lives)

    @property
    def end_ns(self) -> int:
        """When the last of its processes ended."""
        return max(life.end_ns for life in self.lives)

    @property
    def is_ended(self) -> bool:
        """Whether none of its processes may still run."""
        return all(life.is_ended for life in self.lives)

    @property
    def failed_ns(self) -> int | None:
        """When the first of its processes failed; None if none did."""
        return min(
            (life.failed_ns for life in self.lives if life.failed_ns is not None), default=None
        )


def find_attempts(trace: Trace) -> list[Attempt]:
    """Return the attempts of a job's workers, by time; empty for what TraceLens did not record."""
    if trace.recognition is not None or trace.clocks.is_empty():
        return []
    outlines = list_outlines(trace)
    groups: list[_Contemporaries] = []
    for life in sorted(_list_lives(trace), key=lambda life: (life.begin_ns, life.rank)):
        if not groups or groups[-1].ended_before(life):
            groups.append(_Contemporaries())
        groups[-1].add(life)
    attempts = []
    for group in groups:
        outlined_processes = [life.process for life in group.lives if life.process in outlines]
        if outlined_processes:
            most_steps = max(
                outlined_processes, key=lambda process: outlines[process].step_event_count
            )
            lives = tuple(sorted(group.lives, key=lambda life: life.rank))
            attempts.append(Attempt(lives, most_steps))
    return attempts


class _Contemporaries:
    """The lives of an attempt, added in the order of their begin."""

    def __init__(self) -> None:
        self.lives: list[Life] = []
        self._sorted_ends_ns: list[int] = []
        self._ends_ns_by_rank: dict[int, list[int]] = {}

    def add(self, life: Life) -> None:
        """Add a process that began after all others."""
        self.lives.append(life)
        insort(self._sorted_ends_ns, life.end_ns)
        self._ends_ns_by_rank.setdefault(life.rank, []).append(life.end_ns)

    def ended_before(self, life: Life) -> bool:
        """Return True if a process of a new attempt begins: the others, or most of them, had ended."""
        ends_of_rank_ns = self._ends_ns_by_rank.get(life.rank, [])
        other_count = len(self.lives) - len(ends_of_rank_ns)
        lived_on = len(self.lives) - bisect_left(self._sorted_ends_ns, life.begin_ns)
        others_lived_on = lived_on - sum(end_ns >= life.begin_ns for end_ns in ends_of_rank_ns)
        if ends_of_rank_ns:  # its rank had a process in the attempt
            return 2 * others_lived_on <= other_count
        return not others_lived_on


def wall_to_common_ns(trace: Trace, process: int) -> int | None:
    """Return the offset from a wall time of a process's host to common time; None if unknown."""
    return _find_wall_offsets_ns(trace, [process]).get(process)


def _find_wall_offsets_ns(trace: Trace, processes: Sequence[int]) -> dict[int, int]:
    """Return the offsets from wall time to common time by process, where they are known."""
    readings = trace.clocks.filter(
        pl.col("wall_ns").is_not_null() & pl.col("process").is_in(processes)
    )
    last_readings = readings.group_by("process").last().select("process", "monotonic_ns", "wall_ns")
    return {
        process: _to_common(trace, process, np.array([monotonic_ns])).item() - int(wall_ns)
        for process, monotonic_ns, wall_ns in last_readings.iter_rows()
    }


def _list_lives(trace: Trace) -> list[Life]:
    """Return when each worker lived; children of ranks are left out."""
    exits = {
        (entry.host, entry.pid, entry.incarnation): entry
        for entry in trace.journal
        if isinstance(entry, Exited)
    }
    running = {note.file for note in trace.notes if note.kind == "running"}
    workers = trace.processes.filter(
        (pl.col("role") == "worker") & ~pl.col("child").fill_null(value=False)
    )
    offsets_ns = _find_wall_offsets_ns(trace, workers["process"].to_list())
    last_readings_ns = _find_last_readings_ns(trace)
    deaths = trace.endings.filter(pl.col("thread").is_null())
    fatal_ns: dict[int, list[int]] = {}
    for process, at_ns in deaths.select("process", "at_ns").iter_rows():
        fatal_ns.setdefault(process, []).append(at_ns)
    lives = []
    for row in workers.iter_rows(named=True):
        process = row["process"]
        entry = exits.get((row["host"], row["pid"], row["incarnation"]))
        known_ns = [row["first_ns"], row["last_ns"], *fatal_ns.get(process, [])]
        if process in offsets_ns:
            wall_times_ns = [row["started_ns"], row["incarnation"], entry.at_ns if entry else None]
            known_ns += [wall_ns + offsets_ns[process] for wall_ns in wall_times_ns if wall_ns]
        if row["complete"]:
            known_ns.append(last_readings_ns.get(process))
        times_ns = [ns for ns in known_ns if ns is not None]
        if times_ns:
            is_ended = row["file"] not in running
            lives.append(
                _describe_life(row, times_ns, fatal_ns.get(process, []), entry, is_ended=is_ended)
            )
    return lives


def _find_last_readings_ns(trace: Trace) -> dict[int, int]:
    """Return when each process read the wall clock last, common time."""
    readings = trace.clocks.filter(pl.col("wall_ns").is_not_null())
    last_readings = readings.group_by("process").last().select("process", "monotonic_ns")
    return {
        process: _to_common(trace, process, np.array([monotonic_ns])).item()
        for process, monotonic_ns in last_readings.iter_rows()
    }


def _describe_life(
    row: dict[str, Any],
    times_ns: Sequence[int],
    fatal_ns: Sequence[int],
    entry: Exited | None,
    *,
    is_ended: bool,
) -> Life:
    """Return the life of a worker.

    Args:
        row: Its row in `Trace.processes`.
        times_ns: When it is known to have lived, common time.
        fatal_ns: When exceptions or signals ended it, common time.
        entry: How it ended, if somebody saw it.
        is_ended: False if it may still run.
    """
    exit_code = entry.code if entry else None
    has_failed = fatal_ns or exit_code or (is_ended and not row["complete"])
    return Life(
        row["process"],
        row["rank"],
        min(times_ns),
        max(times_ns),
        is_ended,
        failed_ns=min([*fatal_ns, max(times_ns)]) if has_failed else None,
        exit_code=exit_code,
        is_out_of_memory=entry.is_out_of_memory if entry else False,
    )


def _to_common(trace: Trace, process: int, times_ns: Ints) -> Ints:
    clock_map = trace.clock_maps.get(process)
    return times_ns if clock_map is None else to_common_times(clock_map, times_ns)
