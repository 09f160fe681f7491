"""PyTorch: `record_function` under its profiler, and with no profiler at all."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

from benchmarks.recorders.arm import Arm, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["Torch"]

FILE = "torch.json"


class Torch(Recorder):
    """The profiler keeps all in memory until it is told to export."""

    name = "torch.profiler"
    distribution = "torch"
    start = (
        "from torch.profiler import ProfilerActivity, profile\n"
        "profile(activities=[ProfilerActivity.CPU]).start()"
    )

    def __init__(self, folder: Path) -> None:
        self._module = importlib.import_module("torch.profiler")
        self._path = folder / FILE
        self._profiler: Any = None

    def arms(self) -> Sequence[Arm]:
        return (
            Arm("with record_function(name, args):", _with(self._module.record_function, "4096")),
            Arm("with record_function(name):", _with(self._module.record_function), stores="name"),
            Arm("with _RecordFunctionFast(name):", _with(_fast()), stores="name", api="private"),
        )

    def resume(self) -> None:
        activities = [self._module.ProfilerActivity.CPU]
        self._profiler = self._module.profile(activities=activities, acc_events=True)
        self._profiler.start()

    def pause(self) -> None:
        self._profiler.stop()

    def close(self) -> None:
        self._profiler.stop()
        self._profiler.export_chrome_trace(str(self._path))

    @staticmethod
    def count_kept(folder: Path) -> int:
        try:
            events = json.loads((folder / FILE).read_bytes())["traceEvents"]
        except (FileNotFoundError, ValueError):
            return 0
        return sum(event.get("name") == "piece" for event in events)

    @classmethod
    def disabled_arms(cls) -> Sequence[Arm]:
        record_function = importlib.import_module("torch.profiler").record_function
        return (
            Arm("with record_function(name):", _with(record_function), stores="nothing"),
            Arm("with _RecordFunctionFast(name):", _with(_fast()), "nothing", "private"),
        )


def _fast() -> Any:
    return importlib.import_module("torch")._C._profiler._RecordFunctionFast


def _with(form: Callable[..., Any], *values: str) -> Callable[[int], None]:
    def loop(count: int) -> None:
        for _ in range(count):
            with form("piece", *values):
                pass

    return loop
