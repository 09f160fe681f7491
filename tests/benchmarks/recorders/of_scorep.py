"""Score-P's Python bindings, which need a Score-P that is installed apart from Python."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from benchmarks.recorders.arm import Arm, Recorder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["ScoreP"]


class ScoreP(Recorder):
    """User regions; they carry no values."""

    name = "Score-P"
    distribution = "scorep"
    start = "import scorep.user"

    def __init__(self, folder: Path) -> None:
        del folder  # SCOREP_EXPERIMENT_DIRECTORY says where, before Python starts
        try:
            self._region = importlib.import_module("scorep.user").region
        except ModuleNotFoundError as error:
            wants = "its installation runs the program `scorep` of a native Score-P"
            raise ImportError(f"{error}; {wants}") from error

    def arms(self) -> Sequence[Arm]:
        return (Arm("with scorep.user.region(name):", self._with, stores="name"),)

    def close(self) -> None:
        pass

    @staticmethod
    def count_kept(folder: Path) -> int:
        return len(list(folder.glob("**/*.otf2")))

    def _with(self, count: int) -> None:
        region = self._region
        for _ in range(count):
            with region("piece"):
                pass
