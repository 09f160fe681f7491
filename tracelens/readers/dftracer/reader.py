"""The reader for DFTracer's events: a file, or a folder of one a process.

A file does not say its rank. A file alone, of one process, is shown as rank 0, and the verdict stays
open; of several files the user says each one's rank. Files of one rank, such as those of the processes
that load its data, are threads of that rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.model import fmt
from tracelens.model.recognition import Gap
from tracelens.readers import files
from tracelens.readers.base import SIMPLY, Reading
from tracelens.readers.dftracer.columns import is_dftracer, read_events
from tracelens.readers.links import inside

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.dftracer.columns import FileEvents

__all__ = ["DFTracerReader"]

_SUFFIXES: Final = (".pfw", ".pfw.gz", ".json", ".json.gz")
_FORMAT: Final = "log of DFTracer"
_WHY: Final = (
    "DFTracer does not write ranks, and there are events of several processes (those that load data for "
    "a rank are of that rank)"
)


@dataclass(frozen=True)
class DFTracerReader:
    """Reads a file or a folder of DFTracer's events."""

    name: str = _FORMAT

    def sniff(self, path: Path) -> bool:
        """Return whether it is a file of DFTracer's, or a folder with at least one."""
        return any(map(is_dftracer, inside(_files(path), path)))

    def read(self, path: Path, how: Reading = SIMPLY) -> Trace:
        """Read all files; one that cannot be read is noted, where there are others.

        Raises:
            NotATrace: no file can be read.
            EmptyTrace: there is no span in them.
            UnusableInput: it is not known of which rank a file is.
        """
        found, notes = files.each_read(path, _files(path), read_events, how)
        alone = len(found) == 1 and all(len(file.pids) <= 1 for file in found.values())
        ranks = files.ranks_given(found, how.rank_of, _WHY, alone=alone)
        rows = pl.concat(file.rows for file in found.values())
        gaps = _gaps(rows, found, ranks, how.rank_of)
        recognition = files.recognized(_FORMAT, found, gaps, *_facts(rows, found.values()))
        return files.joined(path, found, ranks, notes, recognition)


def _files(path: Path) -> list[Path]:
    return files.called(path, _SUFFIXES)


def _facts(rows: pl.DataFrame, found: Collection[FileEvents]) -> Iterator[tuple[str, str]]:
    if rows["bytes"].count():
        yield "I/O", _moved(rows)
    epochs = set[int]().union(*(file.epochs for file in found))
    steps = set[tuple[int, int]]().union(*(file.steps for file in found))
    if epochs:
        named = fmt.count(len(steps), "step")
        yield "epochs", f"{len(epochs):,}, with {named} that events name"


def _moved(rows: pl.DataFrame) -> str:
    moved = rows.filter(pl.col("bytes").is_not_null())
    is_read = pl.col("kind").cast(pl.String) == "data"
    read, written = (moved.filter(which)["bytes"].sum() for which in (is_read, ~is_read))
    return f"{moved.height:,} calls moved {read:,} bytes in and {written:,} out"


def _gaps(
    rows: pl.DataFrame,
    found: Mapping[str, FileEvents],
    ranks: Mapping[str, int],
    given: Mapping[str, int],
) -> Iterator[Gap]:
    kinds = set(rows["kind"].unique().cast(pl.String))
    yield from files.cut_off(
        found, "Let the program end by itself, so that DFTracer closes its file."
    )
    yield from files.ranks_unknown(found, given)
    yield Gap(
        "collectives are not recorded",
        "which rank others wait for",
        "Record the run with 'tracelens record', or profile it with torch.profiler.",
        decisive=len(set(ranks.values())) > 1,
        hides_waits=True,
    )
    if "step" not in kinds:
        yield Gap(
            "no step is marked by a span (numbers of steps in events are those of samples loaded ahead)",
            "where steps begin",
            "Record the run with 'tracelens record'.",
        )
    if not kinds & {"forward", "backprop", "update"}:
        yield Gap(
            "no span names a phase of training",
            "what ranks did while they did not load data",
            "Wrap forward, backward and optimizer in DFTracer's functions of these names.",
        )
