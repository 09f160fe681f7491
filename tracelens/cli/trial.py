"""A trial recording: a process that records and is killed in the middle, and what is left of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tracelens.cli.checks import Check
from tracelens.errors import TraceLensError

__all__ = ["check_trial"]

SPANS: Final = 1000
TIME_LIMIT_S: Final = 60
_PROGRAM: Final = f"""
import os, signal, sys
import tracelens as tl
tl.start(sys.argv[1], rank=0, world=1)
SPAN = tl.span("trial")
for _ in range({SPANS}):
    with SPAN:
        pass
with SPAN:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def check_trial(place: Path) -> Check:
    """Record into a folder below `place`, be killed, and read it all back."""
    name = "trial"
    try:
        folder = Path(tempfile.mkdtemp(prefix=".tracelens-doctor-", dir=place))
    except OSError as error:
        return Check(name, "problem", f"no folder could be made in {place} ({error.strerror})")
    try:
        said = _record(folder)
        closed = _closed(folder)
    except (OSError, TraceLensError, subprocess.TimeoutExpired) as error:
        return Check(name, "problem", f"a recording could not be read back ({error})")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if closed == SPANS:
        return Check(name, "ok", f"{SPANS} spans recorded, process killed, all read back")
    return Check(name, "problem", f"{closed} of {SPANS} spans were read back", said.strip()[-500:])


def _record(folder: Path) -> str:
    """Record and be killed; return what was said meanwhile."""
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith("TRACELENS_")
    }
    kept = {
        name: os.environ[name]
        for name in ("TRACELENS_NATIVE", "TRACELENS_LOCAL_DIR")
        if name in os.environ
    }
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(folder)],
        env=environment | kept,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    return "" if done.returncode == -signal.SIGKILL else done.stderr


def _closed(folder: Path) -> int:
    """Count the closed spans of what was left."""
    from tracelens.schema.segments import decode

    places = list(folder.iterdir())
    if not places:
        return 0
    events, _ = decode(places[0])
    return sum(status == "closed" for status in events["status"].to_pylist())
