"""The recorders of the comparison: to add one is a file beside this one and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.recorders.by_hand import JsonLines
from benchmarks.recorders.of_dftracer import DfTracer
from benchmarks.recorders.of_jax import Jax
from benchmarks.recorders.of_keke import Keke
from benchmarks.recorders.of_nvtx import Nvtx
from benchmarks.recorders.of_opentelemetry import OpenTelemetry
from benchmarks.recorders.of_perfetto import Perfetto
from benchmarks.recorders.of_scorep import ScoreP
from benchmarks.recorders.of_torch import Torch
from benchmarks.recorders.of_viztracer import VizTracer
from benchmarks.recorders.ours import TraceLens

if TYPE_CHECKING:
    from benchmarks.recorders.arm import Recorder

__all__ = ["PEERS", "RECORDERS"]

PEERS: Final[tuple[type[Recorder], ...]] = (
    VizTracer,
    Jax,
    Keke,
    Torch,
    Perfetto,
    JsonLines,
    DfTracer,
    OpenTelemetry,
    Nvtx,
    ScoreP,
)
RECORDERS: Final[tuple[type[Recorder], ...]] = (TraceLens, *PEERS)
