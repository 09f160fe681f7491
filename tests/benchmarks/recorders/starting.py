"""What it costs to import and start a recorder: fresh interpreters, in turns with one that only ends."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.recorders.arm import Recorder

__all__ = ["Start", "starts"]

BARE = "bare"
END = "\nimport os\nos._exit(0)"  # what a recorder does at the end is not asked here


@dataclass
class Start:
    """Milliseconds beyond those of a bare interpreter: medians of the rounds' differences."""

    wall_ms: float
    cpu_ms: float


def starts(recorders: list[type[Recorder]], rounds: int) -> dict[str, Start]:
    """Measure the code that each recorder's program begins with; None of those that fail."""
    codes = {BARE: ""} | {recorder.name: recorder.start for recorder in recorders}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in codes}
    for number in range(rounds + 1):
        for name, spent in _round(codes).items():
            if number:  # the first round warms the page cache
                times[name].append(spent)
    return {name: _beyond(times[name], times[BARE]) for name in codes if name != BARE}


def _round(codes: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    found = {}
    for name, code in codes.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = _time(code.replace("{folder!r}", repr(folder)) + END)
    return found


def _time(code: str) -> tuple[float, float]:
    """Return the milliseconds of wall and CPU time that a process takes."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        assert process.stderr is not None
        raise RuntimeError(process.stderr.read().decode())
    return 1000 * wall, 1000 * (usage.ru_utime + usage.ru_stime)


def _beyond(times: list[tuple[float, float]], bare: list[tuple[float, float]]) -> Start:
    beyond = [
        (mine[0] - other[0], mine[1] - other[1]) for mine, other in zip(times, bare, strict=True)
    ]
    return Start(*(statistics.median(column) for column in zip(*beyond, strict=True)))
