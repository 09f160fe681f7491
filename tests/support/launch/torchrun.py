"""Starts a training with torchrun, as a user would."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from support.launch.recording import run_command

if TYPE_CHECKING:
    import subprocess
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
    return run_command(command, {"OMP_NUM_THREADS": "1", **where, **variables})
