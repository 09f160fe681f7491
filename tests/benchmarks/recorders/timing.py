"""How long a span takes: all arms in turns within one process, in an order drawn anew each round.

Thread CPU time is what counts, so that a recorder's own threads, and other processes, do not. The ratio
of two arms is taken within each round; of the rounds, the median counts.
"""

from __future__ import annotations

import gc
import random
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.recorders.arm import nothing
from benchmarks.recorders.by_hand import YARDSTICKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from benchmarks.recorders.arm import Arm, Recorder

__all__ = ["Row", "measure"]

SPANS = 250  # with those that warm up fewer than make a batch of OpenTelemetry's
WARM = 250  # or the first to allocate memory pays for what others have returned


@dataclass
class Row:
    """What an arm took: nanoseconds of each round, less those of the bare loop or call."""

    recorder: str
    arm: str
    stores: str
    api: str
    on: bool
    ns: list[float]


@dataclass
class _Run:
    recorder: str
    arm: Arm
    before: Callable[[], object] = nothing
    after: Callable[[], object] = nothing


def measure(
    recorders: Sequence[type[Recorder]], folder: Path, rounds: int
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Measure recorders switched off, then on.

    Returns:
        Rows, and why which recorder could not be measured.
    """
    rows: list[Row] = []
    failed: dict[str, str] = {}
    off_runs: list[_Run] = []
    for kind in recorders:
        try:
            off_runs += [_Run(kind.name, arm) for arm in kind.disabled_arms()]
        except Exception as error:  # noqa: BLE001 - foreign code, which may fail in any way
            failed[kind.name] = _reason(error)
    rows += _rows(off_runs, rounds, on=False)
    on_runs: list[_Run] = []
    running: list[Recorder] = []
    for kind in recorders:
        recorder_folder = folder / kind.__name__
        recorder_folder.mkdir()
        try:
            recorder = kind(recorder_folder)
            arms = recorder.arms()
        except Exception as error:  # noqa: BLE001 - as above
            failed[kind.name] = _reason(error)
            continue
        running.append(recorder)
        on_runs += [_Run(kind.name, arm, recorder.resume, recorder.pause) for arm in arms]
    rows += _rows(on_runs, rounds, on=True)
    return [asdict(row) for row in rows], failed


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _rows(runs: Iterable[_Run], rounds: int, *, on: bool) -> list[Row]:
    """Measure arms beside the yardsticks."""
    all_runs = [*(_Run("", arm) for arm in YARDSTICKS), *runs]
    times = _times(all_runs, rounds)
    bare = {run.arm.name: run_ns for run, run_ns in zip(all_runs, times, strict=True)}
    rows = []
    for run, run_ns in zip(all_runs, times, strict=True):
        if run.arm.stores != "nothing" or run.recorder:
            less = bare[run.arm.less]
            ns = [taken - without for taken, without in zip(run_ns, less, strict=True)]
            rows.append(Row(run.recorder, run.arm.name, run.arm.stores, run.arm.api, on, ns))
    return rows


def _times(runs: Sequence[_Run], rounds: int) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in runs]
    order = list(range(len(runs)))
    gc.collect()
    gc.freeze()  # what the libraries hold is not searched again and again
    for number in range(rounds + 1):
        random.shuffle(order)
        for index in order:
            spent = _time(runs[index])
            if number:  # the first round warms up
                times[index].append(spent)
    return times


def _time(run: _Run) -> float:
    """Return the nanoseconds of CPU that this thread takes for a span."""
    run.before()
    run.arm.loop(WARM)
    gc.collect(0)
    before = time.thread_time_ns()
    run.arm.loop(SPANS)
    spent = time.thread_time_ns() - before
    run.after()
    return spent / SPANS
