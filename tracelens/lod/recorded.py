"""Single recorded spans with all their columns: read, a process at a time, when they are asked for."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.load import samples_of, spans_of
from tracelens.schema.vocabulary import SAMPLES_FOLDER
from tracelens.words import shown_name

if TYPE_CHECKING:
    from tracelens.lod.run import Run
    from tracelens.trace import Trace

KEPT: Final = 4  # processes whose spans stay in memory
MOST_SAMPLED: Final = 16  # and those whose samples do: a rank's, and its peers'


class Recorded:
    """The spans of a run's main processes, from their files or from a trace in memory."""

    def __init__(self, run: Run, source: Path | Trace) -> None:
        self._source = source
        self._run = run
        both = [part.select("process", "file") for part in (run.workers, run.shards)]
        self._files = dict(pl.concat(both).iter_rows())
        self.of = lru_cache(KEPT)(self._of)
        self.samples_of = lru_cache(MOST_SAMPLED)(self._samples_of)

    @property
    def sampled(self) -> frozenset[int]:
        """The processes whose stacks were sampled."""
        if not isinstance(self._source, Path):
            return frozenset(self._source.samples["process"])
        there = {shown_name(file.name) for file in (self._source / SAMPLES_FOLDER).glob("*")}
        return frozenset(process for process, file in self._files.items() if file in there)

    def _of(self, process: int) -> pl.DataFrame:
        """Return the spans of one process as in `Trace.spans`, in order of their begins.

        Raises:
            UnusableInput: its file cannot be read (any more).
        """
        if isinstance(self._source, Path):
            file = self._file(self._source, process)
            return spans_of(file, process, self._run.moved.get(process))
        return self._source.spans.filter(pl.col("process") == process).collect()

    def _samples_of(self, process: int) -> pl.DataFrame:
        """Return the samples of one process's stacks as in `Trace.samples`, in order of their begins.

        Raises:
            UnusableInput: its file cannot be read (any more).
        """
        if isinstance(self._source, Path):
            file = self._file(self._source, process)
            return samples_of(file, process, self._run.moved.get(process)).sort("start_ns")
        return self._source.samples.filter(pl.col("process") == process).sort("start_ns")

    def _file(self, folder: Path, process: int) -> Path:
        """Return the file of a process: tables hold its name as it is shown."""
        name: str = self._files[process]
        if (folder / name).exists():
            return folder / name
        known = (entry for entry in folder.glob("*") if shown_name(entry.name) == name)
        return next(known, folder / name)
