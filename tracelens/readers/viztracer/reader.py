"""The reader for VizTracer's files: one a rank, whose other processes and threads are of that rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.model import fmt
from tracelens.model.recognition import Gap
from tracelens.readers import files
from tracelens.readers.base import SIMPLY, Reading
from tracelens.readers.viztracer.columns import calls_of, is_viztracer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.viztracer.columns import Calls

__all__ = ["VizTracerReader"]

_SUFFIXES: Final = (".json", ".json.gz")
_FORMAT: Final = "trace of VizTracer"
_WHY: Final = "VizTracer does not write ranks, and there are several processes"


@dataclass(frozen=True)
class VizTracerReader:
    """Reads a file or a folder of VizTracer's traces."""

    name: str = _FORMAT

    def sniff(self, path: Path) -> bool:
        """Return whether a file, or one of the first of a folder, is VizTracer's."""
        return files.sniffed(path, _SUFFIXES, is_viztracer)

    def read(self, path: Path, how: Reading = SIMPLY) -> Trace:
        """Read all files; one that cannot be read is noted, where there are others.

        Raises:
            NotATrace: no file can be read.
            EmptyTrace: there is no call in them.
            UnusableInput: it is not known of which rank a file is.
        """
        found, notes = files.each_read(path, files.called(path, _SUFFIXES), calls_of, how)
        alone = all(len(file.pids) <= 1 for file in found.values())
        ranks = files.ranks_given(found, how.rank_of, _WHY, alone=alone)
        rows = pl.concat(file.rows for file in found.values())
        gaps = _gaps(rows, found, how.rank_of)
        return files.joined(path, found, ranks, notes, files.recognized(_FORMAT, found, gaps))


def _gaps(
    rows: pl.DataFrame, found: Mapping[str, Calls], given: Mapping[str, int]
) -> Iterator[Gap]:
    kinds = set(rows["kind"].unique().cast(pl.String))
    yield from files.cut_off(
        found, "Let the program end by itself, so that VizTracer saves its file."
    )
    full = [name for name, file in found.items() if file.overflow]
    if full:
        yield Gap(
            f"the buffer of {fmt.series(full)} was full, and the oldest calls were overwritten",
            "what happened before the first call that is left",
            "Trace a shorter part, or give viztracer a larger --tracer_entries.",
        )
    yield from files.ranks_unknown(found, given)
    yield from files.python_alone(kinds)
