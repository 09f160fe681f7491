"""The reader for sampled stacks of Python: a file of py-spy's or speedscope's, or one a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelens.model.recognition import Gap
from tracelens.model.trace import SAMPLE_COLUMNS
from tracelens.readers.files import FileSet, FilesReader, find_gaps_of_python_calls
from tracelens.readers.spans.rows import fit_columns
from tracelens.readers.stacks import chrometrace, speedscope
from tracelens.readers.stacks.runs import Stacks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.model.trace import Trace


class StacksReader(FilesReader[Stacks]):
    """Reads a file or a folder of sampled stacks."""

    name = "sampled stacks (py-spy, speedscope)"
    format = "profile of sampled stacks"
    suffixes = (".json", ".json.gz", ".speedscope", ".chrometrace")
    why_no_rank = "Files of sampled stacks do not say their rank"
    advice_if_cut = "Stop py-spy with Ctrl-C, so that it writes all of its file."
    has_one_file_per_rank = True

    def is_format(self, file: Path) -> bool:
        """Return True if a file holds sampled stacks."""
        return chrometrace.is_py_spy(file) or speedscope.is_speedscope(file)

    def read_file(self, file: Path) -> Stacks:
        """Read the sampled stacks of a file, as `FilesReader.read_file` says."""
        if chrometrace.is_py_spy(file):
            return chrometrace.read_stacks(file)
        return speedscope.read_stacks(file)

    def complete_trace(self, trace: Trace, run: FileSet[Stacks]) -> Trace:
        """Add the stacks themselves, each with its process and its thread of the trace."""
        samples = pl.concat(
            file.build_samples(run.rank_by_file.get(name, 0)).with_columns(file=pl.lit(name))
            for name, file in run.file_by_name.items()
        )
        processes = trace.processes.select("process", "rank", "file")
        threads = trace.threads.select("process", "thread", thread_name="name")
        samples_of_processes = samples.join(processes, on=["file", "rank"], how="inner")
        samples_of_threads = samples_of_processes.join(
            threads, on=["process", "thread_name"], how="left", maintain_order="left"
        )
        return trace.with_(samples=fit_columns(samples_of_threads, SAMPLE_COLUMNS))

    def list_gaps(self, run: FileSet[Stacks]) -> Iterator[Gap]:
        """Yield what samples do not say."""
        if any(file.leaves_out_idle for file in run.file_by_name.values()):
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
        yield from find_gaps_of_python_calls(run.kinds)
        yield Gap(
            "spans are runs of samples",
            "what took less time than lies between two samples",
            "Sample more often, or record with 'tracelens record'.",
            is_decisive=False,
        )
