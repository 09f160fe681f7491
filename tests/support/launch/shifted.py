"""Whether this machine lets tests run programs whose monotonic clock is shifted."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

AHEAD_S = 100
SHIFT = ["unshare", "-T", "--monotonic", str(AHEAD_S)]


def skip_if_clocks_cannot_be_shifted() -> None:
    """Skip the test, and say why, where no time namespace can be made."""
    reason = _unable()
    if reason is not None:
        pytest.skip(reason)


def _unable() -> str | None:
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "needs root, to make time namespaces"
    if shutil.which("unshare") is None:
        return "needs the program unshare"
    tried = subprocess.run([*SHIFT, "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"unshare cannot shift clocks here: {tried.stderr}"
