"""Tells the process that a launcher made a rank from helpers that the rank started.

A helper inherits the rank's variables. Its failure is none of the rank.
"""

from __future__ import annotations

import os
from pathlib import Path

from tracelens.schema.launchers import read_launcher
from tracelens_instrument.core.environment import DIRECTORY_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

__all__ = ["is_helper_of_rank"]

_PROC: Final = Path("/proc")
_MAX_ANCESTORS: Final = 16  # processes: shells between a rank and its helper, and no more


def is_helper_of_rank() -> bool:
    """Return True if a Python that was started with the same rank has started this process.

    A shell between the launcher and a rank has the same variables, and is no rank.
    """
    launcher, folder = read_launcher(os.environ), os.environ.get(DIRECTORY_VARIABLE)
    pid = os.getppid()
    for _ in range(_MAX_ANCESTORS):
        variables = _read_variables(pid)
        if variables.get(DIRECTORY_VARIABLE) != folder or read_launcher(variables) != launcher:
            return False
        if _read(pid, "comm").startswith("python"):
            return True
        fields = _read(pid, "stat").rpartition(")")[2].split()
        if len(fields) < 2:
            return False
        pid = int(fields[1])
    return False


def _read_variables(pid: int) -> dict[str, str]:
    """Return the variables with which a process was started; empty if they cannot be read."""
    pairs = (entry.partition("=") for entry in _read(pid, "environ").split("\0"))
    return {name: value for name, _, value in pairs}


def _read(pid: int, name: str) -> str:
    try:
        return (_PROC / str(pid) / name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
