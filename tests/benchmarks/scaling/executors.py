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
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.published import table
from benchmarks.scaling.bounds import Bound, Section, spread
from benchmarks.scaling.rounds import TRACELENS, Bench, supports

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.scaling.cost import Cost

__all__ = ["two_workers"]

WORKERS: Final = 2
LEAST_SPEEDUP: Final = 1.7
ONE_THREAD: Final = dict.fromkeys(
    ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
)
DASK_READY_S: Final = 60
_LEAST_MAPS: Final = 0.1  # of the first report; less is noise between two equal reports
_HEAD: Final = ("workers", "wall s", "CPU s of the command", "peak GiB")


def two_workers(bench: Bench) -> Section:
    """Measure one worker and two of each sort on 17 million events."""
    size = bench.size("512x1000", "32x60")
    section = Section(f"Two workers, {size.title}")
    absent = _absent()
    if "" in absent:
        _none(section, dict.fromkeys(_SORTS, absent[""]))
        return section
    _none(section, absent)
    trace = bench.trace(size)
    alone: list[Cost] = []
    second: list[Cost] = []
    both: dict[str, list[Cost]] = {sort: [] for sort in _SORTS if sort not in absent}
    equal = dict.fromkeys(both, True)
    for _ in range(bench.rounds):
        bench.forget(trace)
        alone.append(bench.analyze(trace, "--executor", "processes:1", **ONE_THREAD))
        expected = bench.output.read_bytes()
        second.append(bench.analyze(trace, **ONE_THREAD))
        for sort, costs in both.items():
            bench.forget(trace)
            with _started(sort, bench.folder) as (launcher, executor):
                arguments = ("--executor", executor)
                costs.append(bench.analyze(trace, *arguments, launcher=launcher, **ONE_THREAD))
            equal[sort] &= bench.output.read_bytes() == expected
    maps = [max(a.wall - b.wall, 0.0) for a, b in zip(alone, second, strict=True)]
    kept = median(maps) > _LEAST_MAPS * median(cost.wall for cost in alone)
    for sort, costs in both.items():
        rest = [max(a.wall - b.wall, 1e-9) for a, b in zip(costs, second, strict=True)]
        faster = [a / b for a, b in zip(maps, rest, strict=True)] if kept else []
        why = "" if kept else "this version keeps nothing between verbs: no maps to be seen"
        section.judge(_speed(sort), faster, judged=not bench.quick, why=why)
        section.judge(_equal(sort), [float(equal[sort])], judged=True)
    rows = {"one process": alone, "the same again, no workers": second} | both
    section.texts.append(table("What each takes", _HEAD, map(_row, rows, rows.values())))
    return section


_SORTS: Final = (f"{WORKERS} processes", f"{WORKERS} MPI ranks", f"{WORKERS} Dask workers")
_PROCESSES, _MPI, _DASK = _SORTS


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
    """Return why sorts cannot be measured; under no name, why none can."""
    if not supports("--executor"):
        return {"": "this version has no --executor"}
    absent = {}
    if not importlib.util.find_spec("mpi4py") or not _mpiexec():
        absent[_MPI] = "mpi4py or mpiexec is not installed here"
    if not importlib.util.find_spec("distributed"):
        absent[_DASK] = "Dask is not installed here: pip install 'dask[distributed]'"
    return absent


@contextlib.contextmanager
def _started(sort: str, folder: Path) -> Iterator[tuple[Sequence[str], str]]:
    """Yield how `tracelens` is launched, and the executor that it is given."""
    if sort == _PROCESSES:
        yield TRACELENS, f"processes:{WORKERS}"
    elif sort == _MPI:
        # Of mpi4py.futures rank 0 runs the command, and the others work for it.
        ranks = [_mpiexec() or "", "-n", str(WORKERS + 1)]
        yield (*ranks, sys.executable, "-m", "mpi4py.futures", "-m", "tracelens"), "mpi"
    else:
        with dask_workers(folder) as address:
            yield TRACELENS, f"dask://{address}"


@contextlib.contextmanager
def dask_workers(folder: Path) -> Iterator[str]:
    """Start a scheduler and workers on this machine; yield its host:port once they are there."""
    where = folder / "scheduler.json"
    where.unlink(missing_ok=True)
    dask = [sys.executable, "-m", "dask"]
    known = ["--scheduler-file", str(where)]
    local = ["--host", "127.0.0.1", "--no-dashboard"]
    scheduler = subprocess.Popen([*dask, "scheduler", "--port", "0", *known, *local])
    workers: list[subprocess.Popen[bytes]] = []
    try:
        address = _address(where)
        each = ["--nworkers", "1", "--nthreads", "1", "--memory-limit", "0", *local]
        command = [*dask, "worker", *known, *each]
        workers += [subprocess.Popen(command) for _ in range(WORKERS)]
        ready = f"from distributed import Client; Client({address!r}).wait_for_workers({WORKERS})"
        subprocess.run([sys.executable, "-c", ready], check=True, timeout=DASK_READY_S)
        yield address.removeprefix("tcp://")
    finally:
        for process in (*workers, scheduler):
            process.terminate()
            process.wait()


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
        spread([cost.peak / 2**30 for cost in costs]),
    ]
