"""Who looks at a run while it is recorded: a dashboard that is polled, and reports made anew.

As a program it polls: it asks a server for its list of runs, and for a drawing of one run after the
other, until it is ended, and prints each status.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from benchmarks.clients import DRAWN, PATIENCE_S
from support.web.callbacks import URL, body_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Report", "polling", "report"]

BETWEEN_S: Final = 0.5
PAGES: Final = ("/", "/_dash-layout", "/timeline?run={run}")
_SHOWN_RUN: Final = "shown-run.data"
_SCHEME: Final = "scheme.computedColorScheme"


class Report(NamedTuple):
    """A look at a run that is being recorded: exit code, seconds, and the most bytes of memory."""

    second: float
    code: int
    took_s: float
    memory: int


def report(trace: Path, begun: float) -> Report:
    """Make a report of a run as it is now, in a process of its own."""
    asked_s = time.monotonic()
    command = [sys.executable, "-m", "tracelens", "analyze", str(trace)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    done = time.monotonic()
    return Report(done - begun, process.returncode, done - asked_s, used.ru_maxrss << 10)


@contextmanager
def polling(url: str, runs: list[str], answers: Path) -> Iterator[None]:
    """Have a process poll a dashboard; the status of each answer is a line of a file."""
    command = [sys.executable, __file__, url, *runs]
    with answers.open("w") as output, subprocess.Popen(command, stdout=output) as process:
        try:
            yield
        finally:
            process.terminate()


def poll(url: str, runs: list[str]) -> None:
    """Ask for one thing after the other for ever."""
    address = urlsplit(url).netloc
    listed = json.loads(_answer(address, "/_dash-dependencies")[1])
    while True:
        for run in runs:
            values = {_SCHEME: "light", _SHOWN_RUN: run}
            body = json.dumps(body_of(listed, DRAWN, values))
            asked = [*((path.format(run=run), None) for path in PAGES), (URL, body)]
            for path, posted in asked:
                status, _ = _answer(address, path, posted)
                sys.stdout.write(f"{status} {path}\n")
                sys.stdout.flush()
            time.sleep(BETWEEN_S)


def _answer(address: str, path: str, posted: str | None = None) -> tuple[int, bytes]:
    """Ask once, on a connection of its own, as a browser that comes back later; 0 for no answer."""
    connection = HTTPConnection(address, timeout=PATIENCE_S)
    try:
        kind = {} if posted is None else {"Content-Type": "application/json"}
        connection.request("GET" if posted is None else "POST", path, posted, kind)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, HTTPException):
        return 0, b""
    finally:
        connection.close()


if __name__ == "__main__":
    poll(sys.argv[1], sys.argv[2:])
