"""The attempts of a job: a launcher, a scheduler or a loop in a shell starts its ranks again.

The processes of an attempt live at the same time. A process of a rank that has had one in the attempt
begins a new attempt, unless most of the other ranks live on, as when one worker of a parameter server
comes back. All times are on the common clock.
"""

from __future__ import annotations

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
    lives_of_attempts: list[list[Life]] = []
    for life in sorted(_list_lives(trace), key=lambda life: (life.begin_ns, life.rank)):
        if not lives_of_attempts or _begins_attempt(life, lives_of_attempts[-1]):
            lives_of_attempts.append([life])
        else:
            lives_of_attempts[-1].append(life)
    attempts = []
    for lives in lives_of_attempts:
        outlined_processes = [life.process for life in lives if life.process in outlines]
        if outlined_processes:
            most_steps = max(
                outlined_processes, key=lambda process: outlines[process].step_event_count
            )
            attempts.append(Attempt(tuple(sorted(lives, key=lambda life: life.rank)), most_steps))
    return attempts


def _begins_attempt(life: Life, lives: Sequence[Life]) -> bool:
    """Return True if a process does not belong to the attempt of those that began before it."""
    others = [other for other in lives if other.rank != life.rank]
    lived_on = [other for other in others if other.end_ns >= life.begin_ns]
    if len(others) < len(lives):  # its rank had a process in the attempt
        return 2 * len(lived_on) <= len(others)
    return not lived_on


def wall_to_common_ns(trace: Trace, process: int) -> int | None:
    """Return the offset from a wall time of a process's host to common time; None if unknown."""
    rows = trace.clocks.filter(
        (pl.col("process") == process) & pl.col("wall_ns").is_not_null()
    ).select("monotonic_ns", "wall_ns")
    if rows.is_empty():
        return None
    monotonic_ns, wall_ns = rows.row(-1)
    return _to_common(trace, process, np.array([monotonic_ns])).item() - int(wall_ns)


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
    lives = (_describe_life(trace, row, exits, running) for row in workers.iter_rows(named=True))
    return [life for life in lives if life is not None]


def _describe_life(
    trace: Trace,
    row: dict[str, Any],
    exits: dict[tuple[str, int, int], Exited],
    running: set[str],
) -> Life | None:
    """Return when a worker lived, by the best that is known of its begin and end; None if nothing is.

    `row` is its row in `Trace.processes`, `exits` are by host, process id and incarnation, and `running`
    are the files of processes that may still run.
    """
    process, offset_ns = row["process"], wall_to_common_ns(trace, row["process"])
    is_main_thread = (pl.col("process") == process) & pl.col("thread").is_null()
    fatal_ns = trace.endings.filter(is_main_thread)["at_ns"].to_list()
    known_ns = [row["first_ns"], row["last_ns"], *fatal_ns]
    entry = exits.get((row["host"], row["pid"], row["incarnation"]))
    if offset_ns is not None:
        wall_times_ns = [row["started_ns"], row["incarnation"], entry.at_ns if entry else None]
        known_ns += [wall_ns + offset_ns for wall_ns in wall_times_ns if wall_ns]
    if row["complete"]:
        is_reading = (pl.col("process") == process) & pl.col("wall_ns").is_not_null()
        readings_ns = trace.clocks.filter(is_reading)["monotonic_ns"].to_numpy()
        known_ns += _to_common(trace, process, readings_ns[-1:]).tolist()
    times_ns = [ns for ns in known_ns if ns is not None]
    if not times_ns:
        return None
    is_ended = row["file"] not in running
    exit_code = entry.code if entry else None
    has_failed = fatal_ns or exit_code or (is_ended and not row["complete"])
    return Life(
        process,
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
