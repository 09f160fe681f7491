"""Whether many people who look at a run at once are all answered, and what it costs in memory.

Each asks in turns for a page, what the page is made of, and a drawing, as a browser does, on a
connection of its own, as fast as it is answered. Errors are whatever is not answered with 200.

Run: make bench NAME=clients [PUBLISH=1] [ARGS="--clients 50 --seconds 60 TRACE"]
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

import numpy as np
from benchmarks.published import publish, table
from benchmarks.quick import parse_quick
from benchmarks.resident import resident
from support.web.browser import serving
from support.web.callbacks import URL, body_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DRAWN", "PATIENCE_S", "Found", "visited"]

PATIENCE_S: Final = 60
PAGES: Final = ("/", "/timeline", "/_dash-layout", "/_dash-dependencies")
DRAWN: Final = '{"chart":"waterfall","part":"graph"}.figure'
PAGE: Final = "reliability.md"
SCRIPT: Final = "tests/benchmarks/clients.py"
_SAMPLE: Final = Path(__file__).parents[2] / "sample_traces" / "mpi-late-rank"
_BETWEEN_LOOKS_S: Final = 0.5


class Found(NamedTuple):
    """What many clients got: answers by status (0 = none), how long they took, and the server.

    Of the server: its own bytes and its open descriptors, now and then.
    """

    answers: Counter[int]
    seconds: list[float]
    memory: list[int]
    descriptors: list[int]

    @property
    def errors(self) -> int:
        """Return how many requests got another answer than 200, or none."""
        return self.answers.total() - self.answers[200]


def visited(trace: Path, clients: int, seconds: float) -> Found:
    """Serve a run, and let many clients look at it for a while."""
    with serving(trace) as (url, process):
        address = urlsplit(url).netloc
        body = json.dumps(_drawing(address))
        deadline, answers = time.monotonic() + seconds, list[tuple[int, float]]()
        memory, descriptors = list[int](), list[int]()
        threads = [
            threading.Thread(target=_look, args=(address, body, deadline, answers))
            for _ in range(clients)
        ]
        for thread in threads:
            thread.start()
        while time.monotonic() < deadline:
            memory.append(resident(process)[0])
            descriptors.append(len(list(Path(f"/proc/{process}/fd").iterdir())))
            time.sleep(_BETWEEN_LOOKS_S)
        for thread in threads:
            thread.join()
    statuses = Counter(status for status, _ in answers)
    return Found(statuses, [took for _, took in answers], memory, descriptors)


def _drawing(address: str) -> dict[str, object]:
    connection = HTTPConnection(address, timeout=PATIENCE_S)
    connection.request("GET", "/_dash-dependencies")
    listed = json.loads(connection.getresponse().read())
    connection.close()
    return body_of(listed, DRAWN, {"scheme.computedColorScheme": "light"})


def _look(address: str, body: str, until: float, answers: list[tuple[int, float]]) -> None:
    """Ask for one thing after the other, and note the status of each answer, and how long it took."""
    connection = HTTPConnection(address, timeout=PATIENCE_S)
    posted = {"Content-Type": "application/json"}
    while time.monotonic() < until:
        for path in (*PAGES, URL):
            asked_s = time.monotonic()
            try:
                if path == URL:
                    connection.request("POST", path, body, posted)
                else:
                    connection.request("GET", path)
                answer = connection.getresponse()
                answer.read()
                status = answer.status
            except (OSError, HTTPException):
                status = 0
                connection.close()
            answers.append((status, time.monotonic() - asked_s))
    connection.close()


def to_table(measurement: Found, clients: int, seconds: float) -> str:
    """Return a table of what was measured."""
    median, p99 = np.quantile(measurement.seconds, [0.5, 0.99])
    second_half = slice(len(measurement.memory) // 2, None)
    rows = [
        ["answers", f"{measurement.answers[200]:,}"],
        ["errors", str(measurement.errors)],
        ["seconds until an answer: median, p99", f"{median:.3f}, {p99:.3f}"],
        [
            "memory of the server: half way, at the end",
            _ends(measurement.memory[second_half], 1 << 20, " MiB"),
        ],
        ["descriptors: most in each half", f"{_write_largest(measurement.descriptors)}"],
    ]
    return table(f"{clients} clients for {seconds:g} s", ["what", "measured"], rows)


def _ends(values: list[int], unit: int, name: str) -> str:
    return f"{values[0] / unit:.0f}, {values[-1] / unit:.0f}{name}"


def _write_largest(values: list[int]) -> str:
    half = len(values) // 2
    return f"{max(values[:half])}, {max(values[half:])}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("trace", type=Path, nargs="?", default=_SAMPLE)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--publish", action="store_true", help=f"write docs/{PAGE}")
    options = parse_quick(parser, arguments, clients=2, seconds=2.0)
    measurement = visited(options.trace, options.clients, options.seconds)
    text = to_table(measurement, options.clients, options.seconds)
    sys.stdout.write(f"{text}\n")
    if options.publish:
        publish(PAGE, SCRIPT, text)
    return 1 if measurement.errors else 0


if __name__ == "__main__":
    sys.exit(main())
