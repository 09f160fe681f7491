"""The reader for sampled stacks of Python: a file of py-spy's or speedscope's, or one a rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.model.recognition import Gap
from tracelens.model.trace import SAMPLE_COLUMNS
from tracelens.readers import files
from tracelens.readers.base import SIMPLY, Reading
from tracelens.readers.spans.rows import fitted
from tracelens.readers.stacks import chrometrace, speedscope

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.stacks.runs import Stacks

__all__ = ["StacksReader"]

_SUFFIXES: Final = (".json", ".json.gz", ".speedscope", ".chrometrace")
_FORMAT: Final = "profile of sampled stacks"
_WHY: Final = "Files of sampled stacks do not say their rank"


@dataclass(frozen=True)
class StacksReader:
    """Reads a file or a folder of sampled stacks."""

    name: str = "sampled stacks (py-spy, speedscope)"

    def sniff(self, path: Path) -> bool:
        """Return whether a file, or one of the first of a folder, holds sampled stacks."""
        return files.sniffed(path, _SUFFIXES, _holds_stacks)

    def read(self, path: Path, how: Reading = SIMPLY) -> Trace:
        """Read all files; one that cannot be read is noted, where there are others.

        Raises:
            NotATrace: no file can be read.
            EmptyTrace: there is no stack in them.
            UnusableInput: it is not known of which rank a file is.
        """
        found, notes = files.each_read(path, files.called(path, _SUFFIXES), _stacks, how)
        ranks = files.ranks_given(found, how.rank_of, _WHY, alone=True)
        rows = pl.concat((file.rows for file in found.values()), how="diagonal")
        recognition = files.recognized(_FORMAT, found, _gaps(rows, found, how.rank_of))
        trace = files.joined(path, found, files.one_a_rank(ranks), notes, recognition)
        return trace.with_(samples=_samples(found, ranks, trace))


def _holds_stacks(file: Path) -> bool:
    return chrometrace.is_py_spy(file) or speedscope.is_speedscope(file)


def _stacks(file: Path) -> Stacks:
    if chrometrace.is_py_spy(file):
        return chrometrace.stacks_of(file)
    return speedscope.stacks_of(file)


def _samples(found: Mapping[str, Stacks], ranks: Mapping[str, int], trace: Trace) -> pl.DataFrame:
    """Return the stacks themselves, with the process and the thread of the trace that each is of."""
    of_file = pl.concat(
        file.samples(ranks.get(name, 0)).with_columns(file=pl.lit(name))
        for name, file in found.items()
    )
    processes = trace.processes.select("process", "rank", "file")
    threads = trace.threads.select("process", "thread", thread_name="name")
    return fitted(
        of_file.join(processes, on=["file", "rank"], how="inner").join(
            threads, on=["process", "thread_name"], how="left", maintain_order="left"
        ),
        SAMPLE_COLUMNS,
    )


def _gaps(
    rows: pl.DataFrame, found: Mapping[str, Stacks], given: Mapping[str, int]
) -> Iterator[Gap]:
    yield from files.cut_off(found, "Stop py-spy with Ctrl-C, so that it writes all of its file.")
    yield from files.ranks_unknown(found, given)
    if any(file.compressed for file in found.values()):
        yield Gap(
            "samples of threads that were idle may be left out, and the others stand end to end",
            "when something ran, and for how long ranks waited",
            "Record with py-spy record --idle, or with --format chrometrace.",
        )
    yield Gap(
        "samples do not tell steps apart",
        "how steps differ",
        "Record with 'tracelens record --sample', which has both steps and stacks.",
    )
    yield from files.python_alone(set(rows["kind"].unique().cast(pl.String)))
    yield Gap(
        "spans are runs of samples",
        "what took less time than lies between two samples",
        "Sample more often, or record with 'tracelens record'.",
        decisive=False,
    )
