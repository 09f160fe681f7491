"""keke: events for Chrome's trace viewer, written by a thread."""

from __future__ import annotations

import contextlib
import importlib
import json
from typing import TYPE_CHECKING

from benchmarks.recorders.arm import Arm, Recorder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Keke"]

FILE = "keke.json"


class Keke(Recorder):
    """It runs within a loop only, or its notes of garbage collections would slow others down."""

    name = "keke"
    distribution = "keke"
    start = "import keke\nkeke.TraceOutput(open({folder!r} + '/keke.json', 'w')).__enter__()"

    def __init__(self, folder: Path) -> None:
        self._module = importlib.import_module("keke")
        self._file = (folder / FILE).open("w")

    def arms(self) -> Sequence[Arm]:
        return (Arm("with kev(name, **values):", self._with),)

    def resume(self) -> None:
        self._output = self._module.TraceOutput(self._file, close_output_file=False)
        self._output.__enter__()

    def pause(self) -> None:
        self._output.__exit__(None, None, None)

    def close(self) -> None:
        self.pause()
        self._file.close()

    @staticmethod
    def count_kept(folder: Path) -> int:
        span_count = 0
        for line in (folder / FILE).read_text().splitlines():
            with contextlib.suppress(ValueError):  # brackets, or a torn line
                event = json.loads(line.rstrip(","))
                span_count += isinstance(event, dict) and event.get("name") == "piece"
        return span_count

    def _with(self, count: int) -> None:
        kev = self._module.kev
        for number in range(count):
            with kev("piece", step=number, bytes=4096):
                pass
