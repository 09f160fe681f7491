"""What anybody could write by hand: the yardstick, and lines of JSON in a file."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from typing import TYPE_CHECKING

from benchmarks.recorders.arm import Arm, Recorder, nothing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["INLINE", "YARDSTICKS", "JsonLines"]

INLINE = "inline"


def _loop(count: int) -> None:
    for _ in range(count):
        pass


def _call(count: int) -> None:
    for _ in range(count):
        nothing()


def _inline(count: int) -> None:
    clock = time.perf_counter_ns
    events: list[tuple[str, int, int, int, int]] = []
    for number in range(count):
        start = clock()
        events.append(("piece", number, 4096, start, clock()))


YARDSTICKS = (
    Arm("loop", _loop, "nothing", "by hand"),
    Arm("call", _call, "nothing", "by hand"),
    Arm(INLINE, _inline, "attributes", "by hand"),
)


class JsonLines(Recorder):
    """A line of JSON a span, by the standard library's logging."""

    name = "logging, JSON lines"
    distribution = None
    start = "import json, logging\nlogging.FileHandler({folder!r} + '/log.jsonl')"

    def __init__(self, folder: Path) -> None:
        self._logger = logging.getLogger("benchmark")
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        handler = logging.FileHandler(folder / "log.jsonl")
        handler.setFormatter(logging.Formatter("%(message)s"))
        self._logger.addHandler(handler)
        self._plain = (folder / "plain.json").open("w")

    def arms(self) -> Sequence[Arm]:
        return (
            Arm("logger.info(json.dumps(...))", self._log),
            Arm("file.write(json.dumps(...)), buffered", self._write, api="by hand"),
        )

    def close(self) -> None:
        for handler in self._logger.handlers:
            handler.close()
        self._plain.close()

    @staticmethod
    def count_kept(folder: Path) -> int:
        span_count = 0
        for line in (folder / "log.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError):  # a torn line
                span_count += "dur" in json.loads(line)
        return span_count

    def _log(self, count: int) -> None:
        clock, dumps, info = time.perf_counter_ns, json.dumps, self._logger.info
        for number in range(count):
            start = clock()
            row = {"name": "piece", "step": number, "bytes": 4096, "ts": start}
            row["dur"] = clock() - start
            info(dumps(row))

    def _write(self, count: int) -> None:
        clock, dumps, write = time.perf_counter_ns, json.dumps, self._plain.write
        for number in range(count):
            start = clock()
            row = {"name": "piece", "step": number, "bytes": 4096, "ts": start}
            row["dur"] = clock() - start
            write(dumps(row) + "\n")
