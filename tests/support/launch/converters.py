"""Finds the processes that convert a recording, and waits for what they do."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from support.launch.patience import wait_until


def converters_of(folder: Path) -> list[int]:
    """Return the pids of the converters of a segments folder that are not being killed."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            ours = any(b"tracelens_instrument.storage.converter" in word for word in arguments)
            if ours and str(folder).encode() in arguments and arguments[0] != b"/bin/sh":
                pids.append(int(entry.name))
    return pids


def kill(*pids: int) -> None:
    """Kill those of these processes that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def converted(trace: Path) -> Path:
    """Wait until the recordings of a trace folder, which have ended, are files; return the folder.

    A converter that is slow is not waited for when a recording ends, but goes on by itself.
    """
    wait_until(lambda: not list(trace.glob("*.segments")))
    return trace
