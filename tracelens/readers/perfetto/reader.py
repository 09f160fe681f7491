"""The reader for Perfetto's traces: processes are ranks if their names say so, else files are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.model.recognition import Gap
from tracelens.readers import files
from tracelens.readers.base import SIMPLY, Reading
from tracelens.readers.perfetto.columns import slices_of
from tracelens.readers.perfetto.packets import is_perfetto

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.perfetto.columns import Slices

__all__ = ["SUFFIXES", "PerfettoReader"]

SUFFIXES: Final = (".pftrace", ".perfetto-trace", ".pftrace.gz", ".perfetto-trace.gz")
_FORMAT: Final = "trace of Perfetto"
_WHY: Final = "The names of processes do not say ranks ('rank 3'), and there are several"


@dataclass(frozen=True)
class PerfettoReader:
    """Reads a file or a folder of Perfetto's protobuf traces."""

    name: str = _FORMAT

    def sniff(self, path: Path) -> bool:
        """Return whether a file, or one of the first of a folder, begins with a packet."""
        return files.sniffed(path, SUFFIXES, is_perfetto)

    def read(self, path: Path, how: Reading = SIMPLY) -> Trace:
        """Read all files; one that cannot be read is noted, where there are others.

        Raises:
            MissingExtra: protobuf's library is not installed.
            NotATrace: no file can be read.
            EmptyTrace: there is no slice in them.
            UnusableInput: it is not known of which rank a file is.
        """
        found, notes = files.each_read(path, files.called(path, SUFFIXES), slices_of, how)
        alone = all(len(file.processes) <= 1 for file in found.values())
        ranks = files.ranks_given(found, how.rank_of, _WHY, alone=alone)
        rows = pl.concat((file.rows for file in found.values()), how="diagonal")
        gaps = _gaps(rows, found, how.rank_of)
        return files.joined(path, found, ranks, notes, files.recognized(_FORMAT, found, gaps))


def _gaps(
    rows: pl.DataFrame, found: Mapping[str, Slices], given: Mapping[str, int]
) -> Iterator[Gap]:
    kinds = set(rows["kind"].unique().cast(pl.String))
    yield from files.cut_off(found, "Record again, and copy the trace whole.")
    yield from files.ranks_unknown(found, given)
    if "step" not in kinds:
        yield Gap(
            "no slice is called as a step is",
            "where steps begin, but by the updates or collectives that come back",
            "Put each step into a slice called 'step N'.",
        )
    if not kinds & {"forward", "backprop", "update"}:
        yield Gap(
            "no slice is called as a phase of training is",
            "which phase ranks compute in",
            "Call slices forward, backward and optimizer.",
            decisive=False,
        )
    if "reduction" not in kinds:
        yield Gap(
            "no slice is called as a collective is",
            "which rank others wait for",
            "Record the run with 'tracelens record', or profile it with torch.profiler.",
        )
