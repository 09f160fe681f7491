"""Two workers beside one: processes, MPI ranks, Dask workers; the speed of maps, and equal reports.

The maps are what the second verb on a trace does no more. So their time by the clock is that of the
first report less that of a second one, which has no workers. Starting workers is part of it. Each worker
computes with one thread, also the one that is alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.published import table
from benchmarks.scaling.bounds import Bound, Section, spread
from benchmarks.scaling.cost import GIB, Cost, Failed
from benchmarks.scaling.rounds import TRACELENS, Bench, supports
from benchmarks.scaling.runs import apart

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
__all__ = ["two_workers"]

WORKERS: Final = 2
LEAST_SPEEDUP: Final = 1.7
ONE_THREAD: Final = dict.fromkeys(
    ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
)
DASK_READY_S: Final = 60
_LEAST_MAPS: Final = 0.1  # of the first report; less is noise between two equal reports
_LEAST_S: Final = 1e-3  # of maps that two workers do
_HEAD: Final = ("workers", "wall s", "CPU s of the command", "peak GiB")
_SORTS: Final = (f"{WORKERS} processes", f"{WORKERS} MPI ranks", f"{WORKERS} Dask workers")
_PROCESSES, _MPI, _DASK = _SORTS


@dataclass
class _Measured:
    """What one process, the second verb, and two workers of each sort took, a cost a round."""

    alone: list[Cost] = field(default_factory=list)
    second: list[Cost] = field(default_factory=list)
    two: dict[str, list[Cost]] = field(default_factory=lambda: {sort: [] for sort in _SORTS})
    equal: dict[str, list[bool]] = field(default_factory=lambda: {sort: [] for sort in _SORTS})
    plain: list[bool] = field(default_factory=list)  # whether the second report is equal, too


def two_workers(bench: Bench) -> Section:
    """Measure one worker and two of each sort on 17 million events."""
    size = bench.size("512x1000", "32x60")
    section = Section(f"Two workers, {size.title}")
    absent = _absent()
    if len(absent) == len(_SORTS):
        _none(section, absent)
        return section
    found = _Measured()
    trace = bench.trace(size)
    for _ in range(bench.rounds):
        bench.forget(trace)
        found.alone.append(bench.analyze(trace, "--executor", "processes:1", **ONE_THREAD))
        expected = bench.output.read_bytes()
        found.second.append(bench.analyze(trace, **ONE_THREAD))
        found.plain.append(bench.output.read_bytes() == expected)
        for sort in _SORTS:
            if sort not in absent:
                bench.forget(trace)
                try:
                    with _started(sort, bench) as (launcher, executor):
                        arguments = ("--executor", executor)
                        cost = bench.analyze(trace, *arguments, launcher=launcher, **ONE_THREAD)
                except (Failed, OSError, subprocess.SubprocessError) as error:
                    absent[sort] = " ".join(str(error).split())[-300:]
                    continue
                found.two[sort].append(cost)
                found.equal[sort].append(bench.output.read_bytes() == expected)
    _judge(section, found, absent, judged=not bench.quick)
    _none(section, absent)
    rows = {"one process": found.alone, "the same again, no workers": found.second} | found.two
    shown = [_row(name, costs) for name, costs in rows.items() if costs]
    section.texts.append(table("What each takes", _HEAD, shown))
    return section


def _judge(section: Section, found: _Measured, absent: dict[str, str], *, judged: bool) -> None:
    """Compare by the clock what the second verb does no more."""
    maps = [max(a.wall - b.wall, 0.0) for a, b in zip(found.alone, found.second, strict=True)]
    plain = Bound.yes("a report without workers equals that of one process, byte for byte")
    section.judge(plain, [float(all(found.plain))], judged=True)
    kept = median(maps) > _LEAST_MAPS * median(cost.wall for cost in found.alone)
    why = "" if kept else "this version keeps nothing between verbs: no maps to be seen"
    for sort in _SORTS:
        if sort not in absent:
            pairs = zip(found.two[sort], found.second, strict=True)
            rest = [max(a.wall - b.wall, _LEAST_S) for a, b in pairs]
            faster = [a / b for a, b in zip(maps, rest, strict=True)] if kept else []
            section.judge(_speed(sort), faster, judged=judged, why=why)
            section.judge(_equal(sort), [float(all(found.equal[sort]))], judged=True)


def _speed(sort: str) -> Bound:
    return Bound(f"{sort}: speed of the maps, of one process", LEAST_SPEEDUP, "x", at_least=True)


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
def _started(sort: str, bench: Bench) -> Iterator[tuple[Sequence[str], str]]:
    """Yield how `tracelens` is launched, and the executor that it is given."""
    if sort == _PROCESSES:
        yield TRACELENS, f"processes:{WORKERS}"
    elif sort == _MPI:
        # Of mpi4py.futures rank 0 runs the command, and the others work for it.
        ranks = [_mpiexec() or "", "-n", str(WORKERS + 1)]
        yield (*ranks, sys.executable, "-m", "mpi4py.futures", "-m", "tracelens"), "mpi"
    else:
        with dask_workers(bench) as address:
            yield TRACELENS, f"dask://{address}"


@contextlib.contextmanager
def dask_workers(bench: Bench) -> Iterator[str]:
    """Start a scheduler and workers on this machine; yield its host:port once they are there."""
    where = bench.folder / "scheduler.json"
    where.unlink(missing_ok=True)
    environment = apart(bench.cache, **ONE_THREAD)
    dask = [sys.executable, "-m", "dask"]
    known = ["--scheduler-file", str(where)]
    local = ["--host", "127.0.0.1", "--no-dashboard"]
    log = (bench.folder / "dask.log").open("wb")

    def start(command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env=environment, stderr=log)

    scheduler = start([*dask, "scheduler", "--port", "0", *known, *local])
    workers: list[subprocess.Popen[bytes]] = []
    try:
        address = _address(where)
        each = ["--nworkers", "1", "--nthreads", "1", "--memory-limit", "0", *local]
        command = [*dask, "worker", *known, *each]
        workers += [start(command) for _ in range(WORKERS)]
        ready = f"from distributed import Client; Client({address!r}).wait_for_workers({WORKERS})"
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
        spread([cost.wall for cost in costs]),
        spread([cost.cpu for cost in costs]),
        spread([cost.peak / GIB for cost in costs]),
    ]
