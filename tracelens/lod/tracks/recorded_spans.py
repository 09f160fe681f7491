"""Recorded events of single processes with all their columns, read when they are asked for.

An index holds the summary of each rank; what was recorded is in the trace, a file a process, and is
read from there, so an opened rank costs an index nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.memory import cache_last_results
from tracelens.model.fmt import shown_name
from tracelens.schema.vocabulary import SAMPLES_FOLDER

if TYPE_CHECKING:
    from tracelens.lod.run_data import Run
    from tracelens.model.trace import Trace


KEPT_PROCESSES: Final = 4  # processes whose spans stay in memory
MOST_SAMPLED: Final = 16  # and those whose samples do: a rank's, and its peers'


class RecordedSpans:
    """The events of a run's main processes, from their files or from a trace in memory."""

    def __init__(self, run: Run, source: Path | Trace) -> None:
        self._source = source
        self._run = run
        both = [part.select("process", "file") for part in (run.workers, run.shards)]
        self._file_by_process = dict(pl.concat(both).iter_rows())
        self._events_of = cache_last_results(self.read_events, KEPT_PROCESSES)
        self._last_samples_of = cache_last_results(self._samples_of, MOST_SAMPLED)

    @property
    def sampled_processes(self) -> frozenset[int]:
        """The processes whose stacks were sampled."""
        if not isinstance(self._source, Path):
            return frozenset(self._source.samples["process"])
        sampled_files = {
            shown_name(file.name) for file in (self._source / SAMPLES_FOLDER).glob("*")
        }
        return frozenset(
            process for process, file in self._file_by_process.items() if file in sampled_files
        )

    def open_trace(self) -> Trace:
        """Return all that was recorded.

        Raises:
            UnusableInput: a file cannot be read (any more).
        """
        from tracelens import load  # noqa: PLC0415 - an index opens without readers

        return load.open(self._source) if isinstance(self._source, Path) else self._source

    def read_spans(self, process: int) -> pl.DataFrame:
        """Return the spans of one process as in `Trace.spans`, in order of their begins.

        Raises:
            UnusableInput: its file cannot be read (any more).
        """
        return self.read_cached_events(process).filter(pl.col("type") == "span")

    def read_cached_events(self, process: int) -> pl.DataFrame:
        """Return the events of one process, and keep them for a while.

        Raises:
            UnusableInput: its file cannot be read (any more).
        """
        return self._events_of(process)

    def read_events(self, process: int) -> pl.DataFrame:
        """Return the events of one process, which are not kept in memory.

        Raises:
            UnusableInput: its file cannot be read (any more).
        """
        from tracelens.load import read_events_of_process  # noqa: PLC0415 - an index opens without readers

        if isinstance(self._source, Path):
            file = self._file(self._source, process)
            return read_events_of_process(file, process, self._run.clock_maps.get(process))
        return self._source.events_of(process)

    def read_samples(self, process: int) -> pl.DataFrame:
        """Return the samples of one process's stacks as in `Trace.samples`, in order of their begins.

        Raises:
            UnusableInput: its file cannot be read (any more).
        """
        return self._last_samples_of(process)

    def _samples_of(self, process: int) -> pl.DataFrame:
        from tracelens.load import read_samples_of_process  # noqa: PLC0415 - an index opens without readers

        if isinstance(self._source, Path):
            file = self._file(self._source, process)
            return read_samples_of_process(file, process, self._run.clock_maps.get(process)).sort(
                "start_ns"
            )
        return self._source.samples.filter(pl.col("process") == process).sort("start_ns")

    def _file(self, folder: Path, process: int) -> Path:
        """Return the file of a process: tables hold its name as it is shown."""
        name: str = self._file_by_process[process]
        if (folder / name).exists():
            return folder / name
        known = (entry for entry in folder.glob("*") if shown_name(entry.name) == name)
        return next(known, folder / name)
