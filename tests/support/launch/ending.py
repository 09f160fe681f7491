"""How tests end a server: by SIGTERM, since what is started in the background ignores SIGINT."""

from __future__ import annotations

import subprocess
from typing import Any, Final

import pytest

ENDING_S: Final = 120  # a server that still answers somebody ends in 5, an idle one at once


def end_process(process: subprocess.Popen[Any]) -> int:
    """End a process by SIGTERM and return its exit code; one that goes on is killed, and fails."""
    process.terminate()
    try:
        return process.wait(timeout=ENDING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        pytest.fail(f"{process.args!r} goes on {ENDING_S} s after SIGTERM")
