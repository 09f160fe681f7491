"""Whether many people who look at a run at once are all answered, and what it costs in memory.

Each asks in turns for a page, what the page is made of, and a drawing, as a browser does, on a
connection of its own, as fast as it is answered. Errors are whatever is not answered with 200.

Run: make bench-clients (ARGS="--clients 50 --seconds 60 TRACE")
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from benchmarks.resident import resident
from support.web.browser import serving
from support.web.callbacks import URL, body_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Found", "visited"]

PATIENCE_S: Final = 60
PAGES: Final = ("/", "/timeline", "/_dash-layout", "/_dash-dependencies")
DRAWN: Final = '{"chart":"waterfall","part":"graph"}.figure'
_SAMPLE: Final = Path(__file__).parents[2] / "sample_traces" / "mpi-late-rank"
_BETWEEN_LOOKS_S: Final = 0.5


class Found(NamedTuple):
    """What many clients got: answers by status (0 = none), and the server's bytes now and then."""

    answers: Counter[int]
    memory: list[int]


def visited(trace: Path, clients: int, seconds: float) -> Found:
    """Serve a run, and let many clients look at it for a while."""
    with serving(trace) as (url, process):
        address = urlsplit(url).netloc
        body = json.dumps(_drawing(address))
        until, answers, memory = time.monotonic() + seconds, list[int](), list[int]()
        threads = [
            threading.Thread(target=_look, args=(address, body, until, answers))
            for _ in range(clients)
        ]
        for thread in threads:
            thread.start()
        while time.monotonic() < until:
            memory.append(resident(process)[0])
            time.sleep(_BETWEEN_LOOKS_S)
        for thread in threads:
            thread.join()
    return Found(Counter(answers), memory)


def _drawing(address: str) -> dict[str, object]:
    connection = HTTPConnection(address, timeout=PATIENCE_S)
    connection.request("GET", "/_dash-dependencies")
    listed = json.loads(connection.getresponse().read())
    connection.close()
    return body_of(listed, DRAWN, {"scheme.computedColorScheme": "light"})


def _look(address: str, body: str, until: float, answers: list[int]) -> None:
    """Ask for one thing after the other, and note the status of each answer."""
    connection = HTTPConnection(address, timeout=PATIENCE_S)
    posted = {"Content-Type": "application/json"}
    while time.monotonic() < until:
        for path in (*PAGES, URL):
            try:
                if path == URL:
                    connection.request("POST", path, body, posted)
                else:
                    connection.request("GET", path)
                answer = connection.getresponse()
                answer.read()
                answers.append(answer.status)
            except (OSError, HTTPException):
                answers.append(0)
                connection.close()
    connection.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("trace", type=Path, nargs="?", default=_SAMPLE)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args(arguments)
    found = visited(options.trace, options.clients, options.seconds)
    failed = found.answers.total() - found.answers[200]
    middle = found.memory[len(found.memory) // 2]
    sys.stdout.write(
        f"{options.clients} clients, {options.seconds:g} s: {found.answers[200]:,} answers, "
        f"{failed} errors; "
        f"memory of the server {middle >> 20} MiB half way, {found.memory[-1] >> 20} MiB at the end\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
