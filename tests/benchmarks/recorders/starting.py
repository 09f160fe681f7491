"""What it costs to import and start a recorder: fresh interpreters, in turns with one that only ends.

All of them find compiled modules, as installed ones are.
"""

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
    from benchmarks.recorders.arm import Recorder

__all__ = ["Start", "beside", "starts"]

BARE = "bare"
END = "\nimport os\nos._exit(0)"  # what a recorder does at the end is not asked here


@dataclass
class Start:
    """Milliseconds beyond those of a bare interpreter: medians of the rounds' differences.

    `least_ms` is by how much the least CPU time is beyond the least of a bare interpreter.
    """

    wall_ms: float
    cpu_ms: float
    least_ms: float


def starts(recorders: list[type[Recorder]], rounds: int) -> dict[str, Start]:
    """Measure the code that each recorder's program begins with; None of those that fail."""
    codes = {BARE: ""} | {recorder.name: recorder.start for recorder in recorders}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in codes}
    with tempfile.TemporaryDirectory() as compiled:
        for number in range(rounds + 1):
            for name, code in codes.items():
                spent = _time(code, compiled)
                if number:  # the first round compiles, and warms the page cache
                    times[name].append(spent)
    return {name: _beyond(times[name], times[BARE]) for name in codes if name != BARE}


def beside(library: str, recorder: type[Recorder], rounds: int) -> tuple[float, float]:
    """Return the CPU milliseconds to start a recorder where a library is loaded: median and least."""
    code = recorder.start.replace("\n", "; ")
    code = f"import time, {library}; began = time.process_time_ns(); {code}; "
    code += "print(time.process_time_ns() - began, flush=True); import os; os._exit(0)"
    found = []
    with tempfile.TemporaryDirectory() as compiled:
        for _ in range(rounds + 1):
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, "-c", code.replace("{folder!r}", repr(folder))]
                environment = _environment(compiled)
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
            found.append(int(done.stdout) / 1e6)
    return statistics.median(found[1:]), min(found[1:])


def _environment(compiled: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": compiled}


def _time(code: str, compiled: str) -> tuple[float, float]:
    """Return the milliseconds of wall and CPU time that a process takes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", code.replace("{folder!r}", repr(folder)) + END]
        return _of_process(command, _environment(compiled))


def _of_process(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    began = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
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
    wall, cpu = (statistics.median(column) for column in zip(*beyond, strict=True))
    return Start(wall, cpu, min(row[1] for row in times) - min(row[1] for row in bare))
