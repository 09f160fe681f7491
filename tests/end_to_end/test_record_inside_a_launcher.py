"""`tracelens record` also works between a launcher and each of its ranks, as under srun."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.launch.examples import EXAMPLES
from support.launch.mpi import MPIEXEC
from support.launch.record import record_command, short
from support.launch.recording import read_all, run_command

import tracelens as tl

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

STEPS = 4
TORCHRUN = Path(sys.executable).with_name("torchrun")


def _run(launcher: Sequence[object], folder: Path, *training: object) -> str:
    """Start ranks that are each recorded by a recorder of their own; return the recorders' output."""
    command = [*launcher, *record_command("--out", folder, "--", *training, f"--steps={STEPS}")]
    done = run_command(list(map(str, command)), {"OMP_NUM_THREADS": "1"})
    return done.stderr


def _check(folder: Path, said: str, ranks: int, per_step: int) -> None:
    """All ranks are in one trace, know each other's reductions, and are announced once."""
    recorded = read_all(folder)
    assert [process.side.process.rank for process in recorded] == list(range(ranks))
    assert len({process.side.process.job for process in recorded}) == 1
    arrivals = tl.open(folder).arrivals.filter(step=STEPS - 1)
    assert arrivals.height >= ranks * per_step
    assert set(arrivals["arrived"]) == set(arrivals["expected"]) == {ranks}
    lines = [line for line in said.splitlines() if line.startswith("tracelens: ")]
    assert len(lines) == 1, said
    assert f"tracelens analyze {short(folder)}" in lines[0].replace("'", "")


def test_a_recorder_per_rank_works_under_mpiexec(tmp_path: Path) -> None:
    training = [sys.executable, "-m", "mpi4py", EXAMPLES / "mpi_allreduce.py"]
    said = _run([MPIEXEC, "-n", 3], tmp_path / "t", *training)
    _check(tmp_path / "t", said, ranks=3, per_step=4)


def test_a_recorder_per_rank_works_under_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    launcher = [TORCHRUN, "--standalone", "--nproc-per-node=2", "--no-python"]
    said = _run(launcher, tmp_path / "t", sys.executable, EXAMPLES / "ddp_cnn.py")
    _check(tmp_path / "t", said, ranks=2, per_step=1)
