"""Starts a training with torchrun, as a user would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from support.launch.patience import PATIENCE_S
from support.launch.recording import clean_environment

if TYPE_CHECKING:
    from collections.abc import Sequence


def torchrun_command(script: Path, ranks: int, arguments: Sequence[object] = ()) -> list[str]:
    """Build the command that starts `script` in so many ranks."""
    launcher = str(Path(sys.executable).with_name("torchrun"))
    options = ["--standalone", "--nproc-per-node", str(ranks)]
    return [launcher, *options, str(script), *map(str, arguments)]


def run_ranks(
    command: Sequence[str], trace: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command that starts ranks, which record to `trace`, and wait for it.

    Warnings are errors in the ranks, too: nothing that we do may make a user's program warn.
    """
    where = {} if trace is None else {"TRACELENS_DIR": str(trace)}
    finished = subprocess.run(
        command,
        env=clean_environment(OMP_NUM_THREADS="1", **where, **variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished
