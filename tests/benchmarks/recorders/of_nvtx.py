"""NVTX: annotations that a tool may listen to; without one, nothing is stored."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from benchmarks.recorders.arm import Arm, Recorder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Nvtx"]


class Nvtx(Recorder):
    """Never records by itself: its tools are no Python packages, so only its idle cost can be told."""

    name = "nvtx"
    distribution = "nvtx"
    start = "import nvtx"

    def __init__(self, folder: Path) -> None:
        importlib.import_module("nvtx")
        del folder
        raise ImportError("it stores nothing itself; the tools that listen are no Python packages")

    def arms(self) -> Sequence[Arm]:
        return ()

    def close(self) -> None:
        pass

    @staticmethod
    def count_kept(folder: Path) -> int:
        return len(list(folder.iterdir()))

    @classmethod
    def disabled_arms(cls) -> Sequence[Arm]:
        nvtx = importlib.import_module("nvtx")
        domain = nvtx.get_domain("benchmark")
        attributes = domain.get_event_attributes("piece")

        def annotate(count: int) -> None:
            for number in range(count):
                with nvtx.annotate("piece", domain="benchmark", payload=number):
                    pass

        def push_pop(count: int) -> None:
            push, pop = domain.push_range, domain.pop_range
            for _ in range(count):
                push(attributes)
                pop()

        return (
            Arm("with nvtx.annotate(name, payload=):", annotate, stores="nothing"),
            Arm("domain.push_range(made before) ... pop_range()", push_pop, stores="nothing"),
        )
