"""Runs the examples under `tracelens record`, as their docstrings say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from support.launch.mpi import launch
from support.launch.record import run_record
from support.launch.recording import Recorded, read_all
from support.launch.torchrun import torchrun_command

if TYPE_CHECKING:
    import subprocess

EXAMPLES = Path(__file__).parents[3] / "instrument" / "examples"


def run_example(
    script: str, ranks: int, folder: Path, *arguments: object
) -> subprocess.CompletedProcess[str]:
    """Record an example with its own launcher; what becomes of it is for the caller to judge."""
    path = EXAMPLES / script
    if script.startswith("grpc_"):
        command = [sys.executable, str(path), f"--workers={ranks}"]
    elif script.startswith("mpi_"):
        command = launch(path, ranks)
    else:
        command = torchrun_command(path, ranks)
    command += map(str, arguments)
    return run_record("--out", folder, "--", *command)


def record_example(script: str, ranks: int, folder: Path, *arguments: object) -> list[Recorded]:
    """Record an example that must end well; return its processes."""
    done = run_example(script, ranks, folder, *arguments)
    assert done.returncode == 0, done.stderr
    return read_all(folder)
