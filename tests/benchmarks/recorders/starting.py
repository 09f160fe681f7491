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
    from collections.abc import Mapping, Sequence

__all__ = ["Start", "measure_loaded", "starts"]

BARE = "bare"
END = "\nimport os\nos._exit(0)"  # what a recorder does at the end is not asked here


@dataclass
class Start:
    """Milliseconds beyond those of a bare interpreter: medians of the rounds' differences.

    `least_ms` is by how much the least CPU time is beyond the least of a bare interpreter, whose median
    `bare_ms` is.
    """

    wall_ms: float
    cpu_ms: float
    least_ms: float
    bare_ms: float


def starts(codes: Mapping[str, str], rounds: int) -> dict[str, Start]:
    """Measure the code that each recorder's program begins with."""
    arms = {BARE: ""} | dict(codes)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    with tempfile.TemporaryDirectory() as compiled:
        for number in range(rounds + 1):
            for name, code in arms.items():
                spent = _time(code, compiled)
                if number:  # the first round compiles, and warms the page cache
                    times[name].append(spent)
    return {name: _extra_start(times[name], times[BARE]) for name in codes}


def measure_loaded(library: str, code: str, rounds: int) -> Start:
    """Measure the code where a library is loaded, within the process."""
    clocks = "(time.perf_counter_ns(), time.process_time_ns())"
    code = f"import time, {library}\nbegan = {clocks}\n{code}\nended = {clocks}\n"
    code += f"print(*(after - before for before, after in zip(began, ended)), flush=True){END}"
    times_ms = []
    with tempfile.TemporaryDirectory() as compiled:
        for _ in range(rounds + 1):
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, "-c", code.replace("{folder!r}", repr(folder))]
                environment = _environment(compiled)
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
            wall, cpu = map(int, done.stdout.split())
            times_ms.append((wall / 1e6, cpu / 1e6))
    return _extra_start(times_ms[1:], [(0, 0)] * rounds)


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


def _extra_start(
    times: Sequence[tuple[float, float]], bare: Sequence[tuple[float, float]]
) -> Start:
    extra_times = [
        (mine[0] - other[0], mine[1] - other[1]) for mine, other in zip(times, bare, strict=True)
    ]
    wall, cpu = (statistics.median(column) for column in zip(*extra_times, strict=True))
    of_bare = [row[1] for row in bare]
    least = min(row[1] for row in times) - min(of_bare)
    return Start(wall, cpu, least, statistics.median(of_bare))
