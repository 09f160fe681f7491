"""Runs `tracelens record` as a user does, in a process of its own."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from support.launch.recording import run_command

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path


def record_command(*arguments: object) -> list[str]:
    """Build the command line of `tracelens record`."""
    return [sys.executable, "-m", "tracelens", "record", *map(str, arguments)]


def run_record(
    *arguments: object, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `tracelens record` with these arguments and wait for it."""
    return run_command(
        record_command(*arguments), {"OMP_NUM_THREADS": "1", **variables}, exit_code=None, cwd=cwd
    )


def short(folder: Path) -> str:
    """Name a folder as `record` does: from here, if that is shorter."""
    return min(os.path.relpath(folder), str(folder), key=len)
