"""The attempts of a job: a launcher, a scheduler or a loop in a shell starts its ranks again.

The processes of an attempt live at the same time. A process of a rank that has had one in the attempt
begins a new attempt, unless most of the other ranks live on, as when one worker of a parameter server
comes back. The journal shows attempts that recorded nothing: exits of processes, or launches of commands
that failed. All times are on the common clock.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from tracelens.align.clocks.common import to_common_times
from tracelens.distil.outline import list_outlines
from tracelens.schema.life import Ended, Exited, Launched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Ints
    from tracelens.model.trace import Trace


UNRECORDED: Final = -1  # number of a process: it left no recording [definition]
# ns: `record` and `watch` notice so late at most that a process ended [chosen]
MAX_NOTICE_DELAY_NS: Final = 2_000_000_000


@dataclass(frozen=True)
class Life:
    """When a process lived; `is_ended` is False for one that may still run.

    `process` is `UNRECORDED` for one that left no recording, and whose exit was seen. `failed_ns` is
    when it failed: when an exception or a signal ended it, or it was gone without having ended its
    recording; null if it did not. `exit_code` is negative for the number of a signal, and null if
    nobody saw it. `recorded_until_ns` is the last time of its own recording.
    """

    process: int
    rank: int
    begin_ns: int
    end_ns: int
    is_ended: bool
    failed_ns: int | None = None
    exit_code: int | None = None
    is_out_of_memory: bool = False
    recorded_until_ns: int | None = None

    @property
    def surely_until_ns(self) -> int:
        """Until when it surely lived: its exit was noticed somewhat later than it happened."""
        if self.recorded_until_ns is None:
            return self.end_ns
        return max(self.recorded_until_ns, self.end_ns - MAX_NOTICE_DELAY_NS)


@dataclass(frozen=True, eq=False)
class Attempt:
    """Processes that lived together, by rank; `process` is that of the rank with most steps.

    `process` is null if none of them left a recording. `lives` is empty for a command without a
    recorded process: it was launched at `begin_ns` and failed at `end_ns`. `world` is the number of
    ranks that processes report, at least those seen.
    """

    lives: tuple[Life, ...]
    process: int | None
    begin_ns: int
    end_ns: int
    world: int = 0

    @property
    def is_ended(self) -> bool:
        """Whether none of its processes may still run."""
        return all(life.is_ended for life in self.lives)

    @property
    def failed_ns(self) -> int | None:
        """When the first of its processes failed; None if none did."""
        if not self.lives:
            return self.end_ns
        return min(
            (life.failed_ns for life in self.lives if life.failed_ns is not None), default=None
        )


def find_attempts(trace: Trace) -> list[Attempt]:
    """Return the attempts of a job's workers, by time; empty for what TraceLens did not record."""
    if trace.recognition is not None or trace.clocks.is_empty():
        return []
    attempts = [_describe_attempt(trace, lives) for lives in _group_lives(_list_lives(trace))]
    if all(attempt.process is None for attempt in attempts):
        return []
    lives_without_attempt: list[Life] = []
    for life in _list_unrecorded_lives(trace):
        overlaps = [_overlaps(attempt, life.begin_ns, life.end_ns) for attempt in attempts]
        if not any(overlaps):
            lives_without_attempt.append(life)
            continue
        last_index = max(index for index, is_overlap in enumerate(overlaps) if is_overlap)
        lives = attempts[last_index].lives
        if life.rank not in {member.rank for member in lives}:
            attempts[last_index] = _describe_attempt(trace, [*lives, life])
    attempts += [_describe_attempt(trace, lives) for lives in _group_lives(lives_without_attempt)]
    attempts += _list_failed_launches(trace, attempts)
    return sorted(attempts, key=lambda attempt: attempt.begin_ns)


def _group_lives(lives: Sequence[Life]) -> list[list[Life]]:
    """Return the lives of each attempt, by time."""
    groups: list[_Contemporaries] = []
    for life in sorted(lives, key=lambda life: (life.begin_ns, life.rank)):
        if not groups or groups[-1].ended_before(life):
            groups.append(_Contemporaries())
        groups[-1].add(life)
    return [group.lives for group in groups]


def _overlaps(attempt: Attempt, begin_ns: int, end_ns: int) -> bool:
    return attempt.begin_ns <= end_ns and attempt.end_ns >= begin_ns


def _describe_attempt(trace: Trace, lives: Sequence[Life]) -> Attempt:
    """Return the attempt of processes that lived together."""
    outlines = list_outlines(trace)
    processes = [life.process for life in lives]
    worlds = trace.processes.filter(pl.col("process").is_in(processes))["world"].drop_nulls()
    most_steps = max(
        (process for process in processes if process in outlines),
        key=lambda process: outlines[process].step_event_count,
        default=None,
    )
    return Attempt(
        tuple(sorted(lives, key=lambda life: life.rank)),
        most_steps,
        begin_ns=min(life.begin_ns for life in lives),
        end_ns=max(life.end_ns for life in lives),
        world=max([len({life.rank for life in lives}), *worlds]),
    )


def _list_failed_launches(trace: Trace, attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the commands that failed and of whose processes nothing was seen.

    Several commands may run at a time, as one a host. What lived while any of them ran was theirs.
    """
    offset_ns = find_wall_offset_ns(trace)
    launches: list[Attempt] = []
    running_count, begin_ns = 0, 0
    for entry in trace.journal:
        at_ns = entry.at_ns + offset_ns
        if isinstance(entry, Launched):
            begin_ns = begin_ns if running_count else at_ns
            running_count += 1
        elif isinstance(entry, Ended) and running_count:
            running_count -= 1
            has_attempt = any(_overlaps(attempt, begin_ns, at_ns) for attempt in attempts)
            if not running_count and entry.code and not has_attempt:
                launches.append(Attempt((), None, begin_ns, at_ns))
    return launches


class _Contemporaries:
    """The lives of an attempt, added in the order of their begin."""

    def __init__(self) -> None:
        self.lives: list[Life] = []
        self._sorted_ends_ns: list[int] = []
        self._ends_ns_by_rank: dict[int, list[int]] = {}

    def add(self, life: Life) -> None:
        """Add a process that began after all others."""
        self.lives.append(life)
        insort(self._sorted_ends_ns, life.surely_until_ns)
        self._ends_ns_by_rank.setdefault(life.rank, []).append(life.surely_until_ns)

    def ended_before(self, life: Life) -> bool:
        """Return True if a process of a new attempt begins: the others, or most of them, had ended."""
        ends_of_rank_ns = self._ends_ns_by_rank.get(life.rank, [])
        other_count = len(self.lives) - len(ends_of_rank_ns)
        lived_on = len(self.lives) - bisect_left(self._sorted_ends_ns, life.begin_ns)
        others_lived_on = lived_on - sum(end_ns >= life.begin_ns for end_ns in ends_of_rank_ns)
        if ends_of_rank_ns:  # its rank had a process in the attempt
            return 2 * others_lived_on <= other_count
        return not others_lived_on


def find_wall_offset_ns(trace: Trace) -> int:
    """Return the offset from wall time to common time, of the first process for which it is known."""
    readings = trace.clocks.filter(pl.col("wall_ns").is_not_null()).select("process")
    processes = readings.join(trace.processes, on="process", how="semi")["process"].to_list()
    return find_process_offset_ns(trace, min(processes)) or 0 if processes else 0


def find_process_offset_ns(trace: Trace, process: int) -> int | None:
    """Return the offset from a wall time of a process's host to common time; None if unknown."""
    reading = _find_last_readings(trace, [process]).get(process)
    return None if reading is None else reading.offset_ns


class _ClockReading(NamedTuple):
    """When a process read the clocks, common time and wall time."""

    common_ns: int
    wall_ns: int

    @property
    def offset_ns(self) -> int:
        """The offset from wall time to common time."""
        return self.common_ns - self.wall_ns


def _find_last_readings(trace: Trace, processes: Sequence[int]) -> dict[int, _ClockReading]:
    """Return the last reading of the wall clock by process, of those that have one."""
    readings = trace.clocks.filter(
        pl.col("wall_ns").is_not_null() & pl.col("process").is_in(processes)
    )
    last_readings = readings.group_by("process").last().select("process", "monotonic_ns", "wall_ns")
    return {
        process: _ClockReading(
            _to_common(trace, process, np.array([monotonic_ns])).item(), int(wall_ns)
        )
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
    readings = _find_last_readings(trace, workers["process"].to_list())
    deaths = trace.endings.filter(pl.col("thread").is_null())
    fatal_ns: dict[int, list[int]] = {}
    for process, at_ns in deaths.select("process", "at_ns").iter_rows():
        fatal_ns.setdefault(process, []).append(at_ns)
    lives = []
    for row in workers.iter_rows(named=True):
        process = row["process"]
        entry = exits.get((row["host"], row["pid"], row["incarnation"]))
        known_ns = [row["first_ns"], row["last_ns"], *fatal_ns.get(process, [])]
        reading = readings.get(process)
        if reading is not None:
            wall_times_ns = [row["started_ns"], row["incarnation"]]
            known_ns += [wall_ns + reading.offset_ns for wall_ns in wall_times_ns if wall_ns]
            known_ns += [reading.common_ns] if row["complete"] else []
        recorded_ns = [ns for ns in known_ns if ns is not None]
        if recorded_ns:
            exit_ns = [entry.at_ns + reading.offset_ns] if entry and reading else []
            is_ended = row["file"] not in running
            lives.append(
                _describe_life(
                    row, recorded_ns, exit_ns, fatal_ns.get(process, []), entry, is_ended=is_ended
                )
            )
    return lives


def _list_unrecorded_lives(trace: Trace) -> list[Life]:
    """Return the workers whose exit was seen, and whose recording is not there."""
    identity = ("host", "pid", "incarnation")
    recorded = {*trace.processes.select(identity).iter_rows()}
    incarnations: dict[tuple[str, int], list[int]] = {}
    for host, pid, incarnation in recorded:
        incarnations.setdefault((host, pid), []).append(incarnation or 0)
    offset_ns = find_wall_offset_ns(trace)
    return [
        Life(
            UNRECORDED,
            entry.rank,
            (entry.incarnation or entry.at_ns) + offset_ns,
            entry.at_ns + offset_ns,
            is_ended=True,
            failed_ns=entry.at_ns + offset_ns if entry.code else None,
            exit_code=entry.code,
            is_out_of_memory=entry.is_out_of_memory,
        )
        for entry in trace.journal
        if isinstance(entry, Exited)
        and entry.role == "worker"
        and (entry.host, entry.pid, entry.incarnation) not in recorded
        and not _has_recorded_later(entry, incarnations.get((entry.host, entry.pid), ()))
    ]


def _has_recorded_later(entry: Exited, incarnations: Sequence[int]) -> bool:
    """Return True if a process that did not record at its start began to record before its exit."""
    return not entry.has_recorded and any(
        entry.incarnation <= incarnation <= entry.at_ns for incarnation in incarnations
    )


def _describe_life(
    row: dict[str, Any],
    recorded_ns: Sequence[int],
    exit_ns: Sequence[int],
    fatal_ns: Sequence[int],
    entry: Exited | None,
    *,
    is_ended: bool,
) -> Life:
    """Return the life of a worker.

    Args:
        row: Its row in `Trace.processes`.
        recorded_ns: When it lived by its own recording, common time.
        exit_ns: When its exit was seen, common time; empty if that is not known.
        fatal_ns: When exceptions or signals ended it, common time.
        entry: How it ended, if somebody saw it.
        is_ended: False if it may still run.
    """
    exit_code = entry.code if entry else None
    times_ns = [*recorded_ns, *exit_ns]
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
        recorded_until_ns=max(recorded_ns),
    )


def _to_common(trace: Trace, process: int, times_ns: Ints) -> Ints:
    clock_map = trace.clock_maps.get(process)
    return times_ns if clock_map is None else to_common_times(clock_map, times_ns)
