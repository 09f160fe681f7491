"""Trainings as in tutorials come to the same weights, output and exit code when recorded."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.imports import skip_without
from support.launch.record import record_command
from support.launch.recording import read_all, run_command
from support.launch.torchrun import torchrun_command

skip_without("torch")
pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

PROGRAMS = Path(__file__).parents[1] / "support" / "launch" / "programs" / "torch_programs.py"
TUTORIALS = (
    *("ddp", "no_sync", "fsdp", "gpt", "activation_checkpointing", "images"),
    *("checkpointing", "amp", "join", "collectives"),
)
DDP_STEPS, DDP_BUCKETS = 4, 1


def run(command: Sequence[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user does, and wait for it."""
    return run_command(
        command, {"OMP_NUM_THREADS": "1", "MASTER_PORT": free_port(), **variables}, exit_code=None
    )


def free_port() -> str:
    """Return a port that is free."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return str(found.getsockname()[1])


def spawn_command(*names: str) -> list[str]:
    """Build the command of a program that starts its two ranks by `torch.multiprocessing.spawn`."""
    return [sys.executable, str(PROGRAMS), "--spawn=2", *names]


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the sorted lines that the ranks of a successful run printed."""
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def check_ranks(folder: Path, ranks: Sequence[int] = (0, 1)) -> None:
    """Each rank of a DDP training has a file with all of its buckets."""
    found = [one for one in read_all(folder) if one.named("bucket")]
    assert sorted(one.side.process.rank for one in found) == list(ranks)
    assert {len(one.named("bucket")) for one in found} == {DDP_STEPS * DDP_BUCKETS}


def test_tutorials_come_to_the_same_weights(tmp_path: Path) -> None:
    """To the last bit, with the same output; and the recorder's sentence is all that is added."""
    command = torchrun_command(PROGRAMS, 2, TUTORIALS)
    without, recorded = run(command), run(record_command("--out", tmp_path, "--", *command))
    assert len(lines(without)) == 2 * len(TUTORIALS)
    assert lines(recorded) == lines(without)
    ours = re.search(r"recorded 2 processes with ([\d,]+) events", recorded.stderr)
    assert ours is not None, recorded.stderr
    assert int(ours[1].replace(",", "")) > 50 * len(TUTORIALS)


@pytest.mark.skipif("TRACELENS_ALL_PROGRAMS" not in os.environ, reason="slow: make suite-torch")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++")
def test_a_compiled_model_comes_to_the_same_weights(tmp_path: Path) -> None:
    command = torchrun_command(PROGRAMS, 2, ["compiled"])
    recorded = run(record_command("--out", tmp_path, "--", *command))
    assert lines(recorded) == lines(run(command))
    assert "recorded 2 processes" in recorded.stderr


def test_ranks_that_the_program_spawns_into_one_folder_twice(tmp_path: Path) -> None:
    """By `torch.multiprocessing.spawn`; the second run adds its files to those of the first.

    The second run has a `record` around its own. The inner one records, since it is nearer to the
    program; the outer one says so.
    """
    outer, inner = tmp_path / "outer", tmp_path / "inner"
    record = record_command("--out", inner, "--", *spawn_command("ddp"))
    first_run = run(record)
    check_ranks(inner)
    second_run = run(record_command("--out", outer, "--", *record))
    assert lines(first_run) == lines(second_run) == lines(run(spawn_command("ddp")))
    check_ranks(inner, (0, 0, 1, 1))
    assert not list(outer.glob("*.arrow"))
    assert "nothing was recorded here: the command's own" in second_run.stderr


def test_slurms_variables_name_the_rank(tmp_path: Path) -> None:
    """A process that Slurm started, of a job with this one task."""
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7"}
    command = [sys.executable, str(PROGRAMS), "ddp"]
    done = run(record_command("--out", tmp_path, "--", *command), **slurm)
    assert lines(done) == lines(run(command, **slurm))
    check_ranks(tmp_path, (0,))
    assert read_all(tmp_path)[0].side.process.job == "7"
