"""DFTracer: C++ behind a layer of Python, a file of JSON lines a process."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import json
import os
from typing import TYPE_CHECKING, Any

from benchmarks.recorders.arm import Arm, Recorder, nothing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["DfTracer"]

SWITCHES = {"DFTRACER_ENABLE": "1", "DFTRACER_INIT": "FUNCTION", "DFTRACER_INC_METADATA": "1"}


class DfTracer(Recorder):
    """With attributes, which it drops unless asked to keep them."""

    name = "dftracer"
    distribution = "pydftracer"
    start = (
        f"import os\nos.environ.update({SWITCHES})\n"
        "from dftracer.python import dftracer\n"
        "dftracer.initialize_log(logfile={folder!r} + '/dft', data_dir='/none', process_id=-1)"
    )

    def __init__(self, folder: Path) -> None:
        os.environ.update(SWITCHES)  # read when it is imported
        self._module = importlib.import_module("dftracer.python")
        self._log = self._module.dftracer.initialize_log(
            logfile=str(folder / "dft"), data_dir="/none", process_id=-1
        )

    def arms(self) -> Sequence[Arm]:
        decorated = self._module.dft_fn("user").log(nothing)

        def calls(count: int) -> None:
            for _ in range(count):
                decorated()

        return (
            Arm("with dft_fn(cat, name, step=) as f: f.update(args=)", self._with),
            Arm("@dft_fn(cat).log, beyond the call", calls, stores="name", less="call"),
            Arm("logger.log_event(...), beneath its API", self._native, api="private"),
        )

    def close(self) -> None:
        self._log.finalize()

    @staticmethod
    def count_kept(folder: Path) -> int:
        return sum(event.get("name") == "piece" for event in _events(folder))

    def _with(self, count: int) -> None:
        dft_fn = self._module.dft_fn
        for number in range(count):
            with dft_fn(cat="user", name="piece", step=number) as function:
                function.update(args={"bytes": 4096})

    def _native(self, count: int) -> None:
        clock, log = self._log.logger.get_time, self._log.logger.log_event
        for number in range(count):
            start = clock()
            log(
                name="beneath",
                cat="user",
                start_time=start,
                duration=clock() - start,
                int_args={"step": (0, number), "bytes": (0, 4096)},
                string_args={},
                float_args={},
            )


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    for path in folder.glob("dft*.pfw*"):
        for line in _lines(path):
            with contextlib.suppress(ValueError):  # brackets, or a torn line
                event = json.loads(line.rstrip(b",\n"))
                if isinstance(event, dict):
                    yield event


def _lines(path: Path) -> list[bytes]:
    """Read as much as there is, also of a stream that was cut off."""
    lines_read: list[bytes] = []
    opened = gzip.GzipFile(path) if path.suffix == ".gz" else path.open("rb")
    with opened as lines, contextlib.suppress(EOFError, OSError):
        lines_read.extend(lines)
    return lines_read
