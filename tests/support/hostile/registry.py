"""All formats of hostile inputs, by name: the number of an input says which one it is of."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from support.hostile import calls, formats, native, tables
from support.hostile.formats import Input

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

FORMATS: Final[dict[str, Callable[[Path, Random], Input]]] = {
    "kineto": formats.kineto,
    "viztracer": formats.viztracer,
    "py_spy": formats.py_spy,
    "speedscope": formats.speedscope,
    "dftracer": formats.dftracer,
    "horovod": formats.horovod,
    "flight_recorder": formats.flight_recorder,
    "nsight": formats.nsight,
    "xplane": formats.xplane,
    "perfetto": formats.perfetto,
    "otf2": formats.archive,
    "otlp": calls.otlp,
    "nccl_inspector": calls.nccl_inspector,
    "rocprof": calls.rocprof,
    "exported": calls.exported,
    "csv": lambda folder, random: Input(*tables.write_text(folder, random)),
    "parquet": lambda folder, random: Input(*tables.write_binary(folder, random, "parquet")),
    "arrow": lambda folder, random: Input(*tables.write_binary(folder, random, "arrow")),
    "native": lambda folder, random: Input(native.write_folder(folder, random)),
    "segments": lambda folder, random: Input(native.write_segments(folder, random)),
    "scenario": formats.scenario,
    "report": formats.report,
}
if find_spec("otf2") is None:  # its wheels are for Python 3.11 alone
    del FORMATS["otf2"]
