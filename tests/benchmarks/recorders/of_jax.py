"""JAX: annotations of its profiler, which stores them in C++."""

from __future__ import annotations

import gzip
import importlib
import json
from typing import TYPE_CHECKING

from benchmarks.recorders.arm import Arm, Recorder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Jax"]


class Jax(Recorder):
    """Without its tracer of Python functions, which would slow down everything."""

    name = "jax.profiler"
    distribution = "jax"
    start = "import jax\njax.profiler.start_trace({folder!r})"

    def __init__(self, folder: Path) -> None:
        self._profiler = importlib.import_module("jax").profiler
        self._folder = folder

    def arms(self) -> Sequence[Arm]:
        return (
            Arm("with TraceAnnotation(name, **values):", self._values),
            Arm("with TraceAnnotation(name):", self._names, stores="name"),
        )

    def resume(self) -> None:
        options = self._profiler.ProfileOptions()
        options.python_tracer_level = 0
        self._profiler.start_trace(str(self._folder), profiler_options=options)

    def pause(self) -> None:
        self._profiler.stop_trace()

    def close(self) -> None:
        self._profiler.stop_trace()

    @staticmethod
    def count_kept(folder: Path) -> int:
        span_count = 0
        for path in folder.rglob("*.trace.json.gz"):
            events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
            span_count += sum(event.get("name") == "piece" for event in events)
        return span_count

    @classmethod
    def disabled_arms(cls) -> Sequence[Arm]:
        annotation = importlib.import_module("jax").profiler.TraceAnnotation

        def loop(count: int) -> None:
            for number in range(count):
                with annotation("piece", step=number, bytes=4096):
                    pass

        return (Arm("with TraceAnnotation(name, **values):", loop, stores="nothing"),)

    def _values(self, count: int) -> None:
        annotation = self._profiler.TraceAnnotation
        for number in range(count):
            with annotation("piece", step=number, bytes=4096):
                pass

    def _names(self, count: int) -> None:
        annotation = self._profiler.TraceAnnotation
        for _ in range(count):
            with annotation("piece"):
                pass
