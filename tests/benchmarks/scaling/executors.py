"""Two workers beside one: processes, MPI ranks, Dask workers; the speed of maps, and equal reports.

The maps are timed by the clock, in turns (`passes.py`): with one worker on one core, and with two of the
same sort on two cores. On each of them runs all that takes part: workers, the process that hands work
out and takes it in, and a scheduler. Each worker computes with one thread. Two cores that share memory
and a hypervisor do not do twice the work of one: the bound is a share of what two processes gain on the
same machine, in the same round, that know nothing of each other. Of two whole cores that share is 1.7
times one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.published import table
from benchmarks.scaling.bounds import Bound, Section, write_spread
from benchmarks.scaling.cost import GIB, Cost, Failed, measure_command
from benchmarks.scaling.rounds import Bench, supports
from benchmarks.scaling.runs import apart, same_imports

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
__all__ = ["maps_of", "two_workers"]

WORKERS: Final = 2
LEAST_SHARE: Final = 85  # percent of what two cores can gain: 1.7 of 2
ONE_THREAD: Final = dict.fromkeys(
    ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
)
DASK_READY_S: Final = 60
_PASSES: Final = Path(__file__).with_name("passes.py")
_HEAD: Final = ("workers", "wall s", "CPU s of the command", "peak GiB")
_SORTS: Final = (f"{WORKERS} processes", f"{WORKERS} MPI ranks", f"{WORKERS} Dask workers")
_PROCESSES, _MPI, _DASK = _SORTS


@dataclass
class _Measured:
    """What was seen of each sort, a value a round: maps with one and two workers, and reports."""

    one: dict[str, list[float]] = field(default_factory=lambda: {sort: [] for sort in _SORTS})
    two: dict[str, list[float]] = field(default_factory=lambda: {sort: [] for sort in _SORTS})
    reports: dict[str, list[Cost]] = field(default_factory=lambda: {sort: [] for sort in _SORTS})
    equal: dict[str, list[bool]] = field(default_factory=lambda: {sort: [] for sort in _SORTS})
    alone: list[Cost] = field(default_factory=list)  # reports of one process
    at_most: list[float] = field(default_factory=list)  # what two of this machine's cores can gain

    def faster(self, sort: str) -> list[float]:
        """Return how many times as fast two workers are."""
        return [a / b for a, b in zip(self.one[sort], self.two[sort], strict=True)]

    def reached(self, sort: str) -> list[float]:
        """Return how much of what two cores can gain two workers do gain, in percent."""
        return [
            100 * faster / most
            for faster, most in zip(self.faster(sort), self.at_most, strict=True)
        ]


def two_workers(bench: Bench) -> Section:
    """Measure one worker and two of each sort on 17 million events."""
    size = bench.size("512x1000", "8x20")
    section = Section(f"Two workers, {size.title}")
    absent = _absent()
    if len(absent) == len(_SORTS):
        _none(section, absent)
        return section
    measured = _Measured()
    trace = bench.trace(size)
    for _ in range(bench.rounds):
        bench.forget(trace)
        measured.alone.append(bench.analyze(trace, **ONE_THREAD))
        expected = bench.output.read_bytes()
        for sort in _SORTS:
            if sort not in absent:
                try:
                    _round(bench, trace, sort, expected, measured)
                except (Failed, OSError, subprocess.SubprocessError) as error:
                    absent[sort] = " ".join(str(error).split())[-300:]
        measured.at_most.append(_at_most(trace))
    _judge(section, measured, absent, judged=not bench.quick)
    _none(section, absent)
    section.texts += [_maps(measured, absent), _reports(measured)]
    return section


def _round(bench: Bench, trace: Path, sort: str, expected: bytes, result: _Measured) -> None:
    """Time the maps of a sort with one worker and with two; explain the run with two."""
    with _on_cores(1), _start_executor(sort, bench, 1) as (launcher, executor):
        one_worker_s = maps_of(trace, launcher, executor)
    with _on_cores(WORKERS), _start_executor(sort, bench, WORKERS) as (launcher, executor):
        two = maps_of(trace, launcher, executor)
        bench.forget(trace)
        arguments = ("-m", "tracelens", "analyze", str(trace), "--format", "json")
        command = [*launcher, *arguments, "--executor", executor]
        environment = apart(bench.cache, **ONE_THREAD)
        cost = measure_command(command, bench.output, trace=trace, environment=environment)
    result.one[sort].append(one_worker_s)
    result.two[sort].append(two)
    result.reports[sort].append(cost)
    result.equal[sort].append(bench.output.read_bytes() == expected)


def maps_of(
    trace: Path, launcher: Sequence[str] = (sys.executable,), executor: str = "threads"
) -> float:
    """Return the seconds that the maps of a trace take, in one thread of each worker."""
    return _seconds(_maps_begun(trace, launcher, executor))


def _maps_begun(
    trace: Path, launcher: Sequence[str] = (sys.executable,), executor: str = "threads"
) -> subprocess.Popen[str]:
    command = [*launcher, str(_PASSES), str(trace), executor]
    environment = same_imports() | ONE_THREAD
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def _seconds(begun: subprocess.Popen[str]) -> float:
    printed, _ = begun.communicate()
    if begun.returncode:
        raise Failed(f"the maps ended with exit code {begun.returncode}")
    return float(json.loads(printed)["maps_s"])


def _at_most(trace: Path) -> float:
    """Return how many times as much two processes get through that know nothing of each other."""
    with _on_cores(1):
        alone = maps_of(trace)
    with _on_cores(WORKERS):
        both = [_seconds(process) for process in [_maps_begun(trace) for _ in range(WORKERS)]]
    return WORKERS * alone / max(both)


@contextlib.contextmanager
def _on_cores(count: int) -> Iterator[None]:
    """Let this process, and what it starts, use so many cores only."""
    cores_before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores_before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores_before)


def _judge(section: Section, found: _Measured, absent: dict[str, str], *, judged: bool) -> None:
    for sort in _SORTS:
        if sort not in absent:
            section.judge(_speed(sort), found.reached(sort), judged=judged)
            section.judge(_equal(sort), [float(all(found.equal[sort]))], judged=True)


def _maps(measured: _Measured, absent: dict[str, str]) -> str:
    rows = [
        [
            sort,
            *(write_spread(of[sort]) for of in (measured.one, measured.two)),
            write_spread(measured.faster(sort)),
        ]
        for sort in _SORTS
        if sort not in absent
    ]
    head = ("workers", "wall s, one on one core", "wall s, two on two", "times as fast")
    shown = table("The maps", head, rows)
    return (
        f"{shown}\n\nTwo independent processes, each with all maps of its own, do "
        f"{write_spread(measured.at_most)} x the work of one process alone in the same time. Two "
        "workers cannot be faster than this."
    )


def _reports(found: _Measured) -> str:
    rows = {"one process": found.alone} | found.reports
    shown = [_row(name, costs) for name, costs in rows.items() if costs]
    return table("Whole reports", _HEAD, shown)


def _speed(sort: str) -> Bound:
    what = f"{sort}: speed-up of the maps, of what two cores can gain"
    return Bound(what, LEAST_SHARE, "%", at_least=True)


def _equal(sort: str) -> Bound:
    return Bound.yes(f"{sort}: the report equals that of one process, byte for byte")


def _none(section: Section, absent: dict[str, str]) -> None:
    """Say of each sort that is not there why."""
    for sort, why in absent.items():
        section.judge(_speed(sort), [], judged=True, why=why)
        section.judge(_equal(sort), [], judged=True, why=why)


def _absent() -> dict[str, str]:
    """Return why sorts cannot be measured."""
    if not supports("--executor"):
        return dict.fromkeys(_SORTS, "this version has no --executor")
    absent = {}
    if not importlib.util.find_spec("mpi4py") or not _mpiexec():
        absent[_MPI] = "mpi4py or mpiexec is not installed here"
    if not importlib.util.find_spec("distributed"):
        absent[_DASK] = "Dask is not installed here: pip install 'dask[distributed]'"
    return absent


@contextlib.contextmanager
def _start_executor(sort: str, bench: Bench, count: int) -> Iterator[tuple[Sequence[str], str]]:
    """Yield how Python is launched, and the executor that is used there."""
    if sort == _PROCESSES:
        yield (sys.executable,), f"processes:{count}"
    elif sort == _MPI:
        # Of mpi4py.futures rank 0 runs the command, and the others work for it.
        ranks = [_mpiexec() or "", "-n", str(count + 1)]
        yield (*ranks, sys.executable, "-m", "mpi4py.futures"), "mpi"
    else:
        with dask_workers(bench, count) as address:
            yield (sys.executable,), f"dask://{address}"


@contextlib.contextmanager
def dask_workers(bench: Bench, count: int = WORKERS) -> Iterator[str]:
    """Start a scheduler and workers on this machine; yield its host:port once they are there."""
    where = bench.folder / "scheduler.json"
    where.unlink(missing_ok=True)
    environment = apart(bench.cache, **ONE_THREAD)
    dask = [sys.executable, "-m", "dask"]
    scheduler_option = ["--scheduler-file", str(where)]
    local = ["--host", "127.0.0.1", "--no-dashboard"]
    log = (bench.folder / "dask.log").open("wb")

    def start(command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env=environment, stderr=log)

    scheduler = start([*dask, "scheduler", "--port", "0", *scheduler_option, *local])
    workers: list[subprocess.Popen[bytes]] = []
    try:
        address = _address(where)
        each = ["--nworkers", "1", "--nthreads", "1", "--memory-limit", "0", *local]
        command = [*dask, "worker", *scheduler_option, *each]
        workers += [start(command) for _ in range(count)]
        ready = f"from distributed import Client; Client({address!r}).wait_for_workers({count})"
        subprocess.run([sys.executable, "-c", ready], check=True, timeout=DASK_READY_S)
        yield address.removeprefix("tcp://")
    finally:
        for process in (*workers, scheduler):
            process.terminate()
            process.wait()
        log.close()


def _address(where: Path) -> str:
    """Wait until the scheduler has written where it listens."""
    until = time.monotonic() + DASK_READY_S
    while not where.exists() or not where.read_text().strip():
        assert time.monotonic() < until, "the Dask scheduler did not start"
        time.sleep(0.1)
    address: str = json.loads(where.read_text())["address"]
    return address


def _mpiexec() -> str | None:
    beside = str(Path(sys.executable).parent)
    return shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")


def _row(name: str, costs: list[Cost]) -> list[str]:
    return [
        name,
        write_spread([cost.wall for cost in costs]),
        write_spread([cost.cpu for cost in costs]),
        write_spread([cost.peak / GIB for cost in costs]),
    ]
