"""Single recorded spans with all their columns: read, a process at a time, when they are asked for."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.load import spans_of

if TYPE_CHECKING:
    from tracelens.lod.run import Run
    from tracelens.trace import Trace

KEPT: Final = 4  # processes whose spans stay in memory


class Recorded:
    """The spans of a run's main processes, from their files or from a trace in memory."""

    def __init__(self, run: Run, source: Path | Trace) -> None:
        self._source = source
        self._run = run
        rows = pl.concat([run.workers, run.shards]).select("process", "file").iter_rows()
        self._files = dict(rows)
        self.of = lru_cache(KEPT)(self._of)

    def _of(self, process: int) -> pl.DataFrame:
        """Return the spans of one process as in `Trace.spans`, in order of their begins.

        Raises:
            UnusableInput: its file cannot be read (any more).
        """
        if isinstance(self._source, Path):
            file = self._source / self._files[process]
            return spans_of(file, process, self._run.moved.get(process))
        return self._source.spans.filter(pl.col("process") == process).collect()
