"""Runs `tracelens record` as a user does, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from support.launch.patience import PATIENCE_S
from support.launch.recording import clean_environment

if TYPE_CHECKING:
    from pathlib import Path


def record_command(*arguments: object) -> list[str]:
    """Build the command line of `tracelens record`."""
    return [sys.executable, "-m", "tracelens", "record", *map(str, arguments)]


def run_record(
    *arguments: object, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `tracelens record` with these arguments and wait for it."""
    return subprocess.run(
        record_command(*arguments),
        env=clean_environment(OMP_NUM_THREADS="1", **variables),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def short(folder: Path) -> str:
    """Name a folder as `record` does: from here, if that is shorter."""
    return min(os.path.relpath(folder), str(folder), key=len)
