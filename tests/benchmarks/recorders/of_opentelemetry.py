"""OpenTelemetry's SDK: batches of spans, exported by a thread of its own."""

from __future__ import annotations

import contextlib
import importlib
import json
from typing import TYPE_CHECKING

from benchmarks.recorders.arm import Arm, Recorder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["OpenTelemetry"]

FILE = "spans.jsonl"


class OpenTelemetry(Recorder):
    """The batch processor as it is by default, with the SDK's exporter of JSON to a stream."""

    name = "OpenTelemetry SDK"
    distribution = "opentelemetry-sdk"
    start = (
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter\n"
        "provider = TracerProvider()\n"
        "exporter = ConsoleSpanExporter(out=open({folder!r} + '/spans.jsonl', 'w'))\n"
        "provider.add_span_processor(BatchSpanProcessor(exporter))\n"
        "provider.get_tracer('benchmark')"
    )

    def __init__(self, folder: Path) -> None:
        trace = importlib.import_module("opentelemetry.sdk.trace")
        export = importlib.import_module("opentelemetry.sdk.trace.export")
        exporter = export.ConsoleSpanExporter(
            out=(folder / FILE).open("w"), formatter=lambda span: span.to_json(indent=None) + "\n"
        )
        self._provider = trace.TracerProvider()
        self._provider.add_span_processor(export.BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("benchmark")

    def arms(self) -> Sequence[Arm]:
        return (
            Arm("with tracer.start_as_current_span(name, attributes=):", self._with),
            Arm("tracer.start_span(name, attributes=) ... end()", self._tokens),
        )

    def pause(self) -> None:
        self._provider.force_flush()

    def close(self) -> None:
        self._provider.shutdown()

    @staticmethod
    def count_kept(folder: Path) -> int:
        span_count = 0
        for line in (folder / FILE).read_text().splitlines():
            with contextlib.suppress(ValueError):  # a torn line
                span_count += "end_time" in json.loads(line)
        return span_count

    def _with(self, count: int) -> None:
        start = self._tracer.start_as_current_span
        for number in range(count):
            with start("piece", attributes={"step": number, "bytes": 4096}):
                pass

    def _tokens(self, count: int) -> None:
        start = self._tracer.start_span
        for number in range(count):
            start("piece", attributes={"step": number, "bytes": 4096}).end()
