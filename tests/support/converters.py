"""Finds the processes that convert a recording, and waits for what they do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 60


def converters_of(folder: Path) -> list[int]:
    """Return the pids of the converters of a segments folder that are not being killed."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            ours = any(b"tracelens_instrument.converter" in word for word in words)
            if ours and str(folder).encode() in words and words[0] != b"/bin/sh":
                found.append(int(entry.name))
    return found


def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so, which it will be."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
