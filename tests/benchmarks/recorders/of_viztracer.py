"""VizTracer: a ring of events in memory, saved at the end."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING

from benchmarks.recorders.arm import Arm, Recorder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["VizTracer"]

FILE = "viztracer.json"


class VizTracer(Recorder):
    """With `log_sparse`, so that it records what it is told, not every call of a function."""

    name = "viztracer"
    distribution = "viztracer"
    start = "import viztracer\nviztracer.VizTracer(verbose=0, log_sparse=True).start()"

    def __init__(self, folder: Path) -> None:
        module = importlib.import_module("viztracer")
        self._tracer = module.VizTracer(
            verbose=0, log_sparse=True, tracer_entries=200_000, output_file=str(folder / FILE)
        )

    def arms(self) -> Sequence[Arm]:
        return (
            Arm("with tracer.log_event(name):", self._events, stores="name"),
            Arm("tracer.log_instant(name, args=), no duration", self._instants),
            Arm("tracer.add_raw({...})", self._raw, api="private"),
        )

    def resume(self) -> None:
        self._tracer.start()

    def pause(self) -> None:
        self._tracer.stop()
        self._tracer.clear()

    def close(self) -> None:
        self._tracer.stop()
        self._tracer.save()

    @staticmethod
    def count_kept(folder: Path) -> int:
        try:
            events = json.loads((folder / FILE).read_bytes())["traceEvents"]
        except (FileNotFoundError, ValueError):
            return 0
        return sum(event["name"].startswith("piece") for event in events)

    def _events(self, count: int) -> None:
        log_event = self._tracer.log_event
        for _ in range(count):
            with log_event("piece"):
                pass

    def _instants(self, count: int) -> None:
        log_instant = self._tracer.log_instant
        for number in range(count):
            log_instant("piece", args={"step": number, "bytes": 4096})

    def _raw(self, count: int) -> None:
        clock, add = self._tracer.getts, self._tracer.add_raw
        for number in range(count):
            start = clock()
            values = {"step": number, "bytes": 4096}
            row = {"ph": "X", "name": "piece", "cat": "FEE", "ts": start, "args": values}
            row["dur"] = clock() - start
            add(row)
