"""Whoever does the work, the report is the same byte for byte: threads, processes, MPI ranks, Dask."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest
from support.launch.mpi import MPIEXEC

from tracelens.errors import InvalidArgument
from tracelens.executors import open_executor
from tracelens.parallel import map_in_order
from tracelens.simulator.synthetic import Fault, Scenario, random_clocks, write

LIMIT_S = 120
SLOW = Scenario(
    ranks=6,
    ranks_per_host=2,
    steps=60,
    clocks=random_clocks(3),
    faults=(Fault("backprop", (4,), factor=1.5),),
)


@pytest.fixture(scope="module")
def run_of_six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("six") / "run"
    write(SLOW, folder)
    return folder


def analyze_in_program(folder: Path, *executor: str, launcher: tuple[str, ...] = ()) -> bytes:
    """Analyze in a program of its own; its kept report, if any, is not what is looked at."""
    command = [*launcher, "-m", "tracelens", "analyze", str(folder), "--format", "json", *executor]
    done = subprocess.run(
        command if launcher else [sys.executable, *command],
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.fixture(scope="module")
def in_threads(run_of_six: Path) -> bytes:
    report = analyze_in_program(run_of_six, "--again")
    assert b'"straggler"' in report
    return report


def test_two_processes_give_the_same_report(run_of_six: Path, in_threads: bytes) -> None:
    assert analyze_in_program(run_of_six, "--again", "--executor", "processes:2") == in_threads


@pytest.mark.slow
def test_mpi_ranks_give_the_same_report(run_of_six: Path, in_threads: bytes) -> None:
    """Two ranks work, a third one merges what they found."""
    ranks = (str(MPIEXEC), "-n", "3", sys.executable, "-m", "mpi4py.futures")
    assert (
        analyze_in_program(run_of_six, "--again", "--executor", "mpi", launcher=ranks) == in_threads
    )


def test_a_single_mpi_rank(run_of_six: Path) -> None:
    """Without other ranks nobody would work, and it is said how to start some."""
    command = [
        sys.executable,
        "-m",
        "tracelens",
        "analyze",
        str(run_of_six),
        "--again",
        "--executor",
        "mpi",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2
    assert "mpiexec -n N" in done.stderr


@pytest.fixture
def dask() -> Iterator[str]:
    """Start a scheduler and two workers, as a cluster would."""
    local_options = ("--host=127.0.0.1", "--no-dashboard")
    with _Program("distributed.cli.dask_scheduler", "--port=0", *local_options) as scheduler:
        address = scheduler.await_line(r"tcp://(127\.0\.0\.1:\d+)")
        worker = (
            "distributed.cli.dask_worker",
            address,
            "--nthreads=1",
            "--no-nanny",
            *local_options,
        )
        with _Program(*worker) as one, _Program(*worker) as other:
            one.await_line("Registered to")
            other.await_line("Registered to")
            yield address


@pytest.mark.slow
def test_dask_workers_give_the_same_report(run_of_six: Path, in_threads: bytes, dask: str) -> None:
    """Two workers of a real Dask cluster."""
    assert analyze_in_program(run_of_six, "--again", "--executor", f"dask://{dask}") == in_threads


@pytest.mark.slow
def test_a_missing_dask_scheduler_is_reported(run_of_six: Path) -> None:
    """Where no scheduler is, that is said; in a process of its own, with which Dask's threads end."""
    command = [sys.executable, "-m", "tracelens", "analyze", str(run_of_six), "--again"]
    ended = subprocess.run(
        [*command, "--executor", "dask://127.0.0.1:9"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "dask://127.0.0.1:9: no Dask scheduler answers there" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "spec", ["processes", "processes:0", "processes:-1", "dask:host", "mpi:2", "x"]
)
def test_no_such_executor(spec: str) -> None:
    """An executor that there is not is a sentence with those that there are."""
    with pytest.raises(InvalidArgument, match="processes:N"), open_executor(spec):
        pass


@dataclass(frozen=True)
class Doing:
    """A task for an executor; any other process than `parent` dies of it if `deadly`."""

    number: int
    parent: int
    deadly: bool = False

    def done(self) -> int:
        if self.deadly and os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.number


def test_a_worker_that_dies() -> None:
    """What a killed worker was to do is done again, and nothing is lost or out of order."""
    things = [Doing(number, os.getpid(), deadly=number == 7) for number in range(20)]
    with open_executor("processes:2") as executor:
        assert list(map_in_order(Doing.done, things, executor)) == list(range(20))


@pytest.mark.slow
def test_an_error_of_a_task_is_raised_and_not_retried() -> None:
    """What fails for a reason of its own is not tried again, but told."""
    with open_executor("processes:2") as executor, pytest.raises(ZeroDivisionError):
        list(map_in_order(_inverse, [1, 0, 2], executor))


def _inverse(number: int) -> float:
    return 1 / number


class _Program:
    """A Python module that runs during the test, and its output."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        assert self._process.stdout
        self._process.stdout.close()

    def await_line(self, pattern: str) -> str:
        """Wait until it says something, and return its first group, or all of it."""
        assert self._process.stdout
        deadline_s, lines = time.monotonic() + 60, []
        for line in self._process.stdout:
            lines.append(line)
            if found := re.search(pattern, line):
                return found[found.re.groups]
            assert time.monotonic() < deadline_s, "".join(lines)
        raise AssertionError("".join(lines))
