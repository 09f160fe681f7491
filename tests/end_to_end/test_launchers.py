"""A launcher ends recorded ranks as it ends others, and their recordings are kept."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from support.imports import skip_without
from support.launch.patience import PATIENCE_S
from support.launch.record import record_command, run_record
from support.launch.recording import clean_environment
from support.launch.torchrun import torchrun_command
from support.turns import select_turn

import tracelens as tl

skip_without("torch")
pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

PROGRAM = Path(__file__).parents[1] / "support" / "launch" / "programs" / "endless_ddp.py"
MANY = 64
COLLECTIVES = """
from mpi4py import MPI
import numpy
for _ in range(20):
    MPI.COMM_WORLD.Allreduce(numpy.ones(1024), numpy.empty(1024))
"""


@pytest.mark.parametrize(
    ("number", "everybody"),
    select_turn(
        [
            pytest.param(signal.SIGINT, True, id="Ctrl-C"),
            pytest.param(signal.SIGTERM, False, id="SIGTERM"),
        ]
    ),
)
def test_a_training_that_is_ended(number: int, *, everybody: bool, tmp_path: Path) -> None:
    """By Ctrl-C or by a scheduler: no process is left, and all steps are recorded."""
    with subprocess.Popen(
        record_command("--out", tmp_path, "--", *torchrun_command(PROGRAM, 2)),
        env=clean_environment(OMP_NUM_THREADS="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "trains\n"
            if everybody:
                os.killpg(started.pid, number)
            else:
                started.send_signal(number)
            output, errors = started.communicate(timeout=PATIENCE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode != 0
    assert "recorded 2 processes" in errors, errors
    assert "Verdict" in output + errors
    steps = tl.open(tmp_path).steps.group_by("rank").len().sort("rank").rows()
    assert [rank for rank, _ in steps] == [0, 1]
    assert all(count > 5 for _, count in steps)


@pytest.mark.skipif("TRACELENS_ALL_PROGRAMS" not in os.environ, reason="slow: make suite-torch")
def test_many_ranks_have_each_a_file_with_every_call(tmp_path: Path) -> None:
    """So many that they wait for a core most of the time: each has its file, with every call."""
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    program = [mpiexec, "-n", str(MANY), sys.executable, "-c", COLLECTIVES]
    done = run_record("--no-verdict", "--out", tmp_path, "--", *program)
    assert done.returncode == 0, done.stderr
    assert f"recorded {MANY} processes with {MANY * 20:,} events" in done.stderr
    assert tl.open(tmp_path).workers["rank"].to_list() == list(range(MANY))
