"""Reads the samples of call stacks that lie beside a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from tracelens.errors import NotATrace
from tracelens.readers._links import check_inside
from tracelens.schema.samples import SAMPLES, read_batches
from tracelens.schema.vocabulary import SAMPLES_FOLDER, TRACE_SUFFIX
from tracelens.trace import SAMPLE_COLUMNS, Note

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.readers._assemble import Part
    from tracelens.trace import Trace


def with_samples(trace: Trace, folder: Path, parts: list[Part]) -> Trace:
    """Return the trace with the samples of its processes; damaged ones become notes."""
    owners = {
        file.removesuffix(TRACE_SUFFIX): process
        for process, file in trace.processes.select("process", "file").iter_rows()
    }
    sides = {part.file.removesuffix(TRACE_SUFFIX): part.side for part in parts}
    found, notes = [], []
    for file in sorted((folder / SAMPLES_FOLDER).glob(f"*{TRACE_SUFFIX}")):
        name = file.name.removesuffix(TRACE_SUFFIX)
        if name not in owners:
            continue
        index_of = {row.native_id: row.index for row in sides[name].threads if row.native_id}
        try:
            check_inside(file, folder)
            found.append(_read(file, owners[name], sides[name].process.pid, index_of))
        except (
            NotATrace,
            OSError,
            ValueError,
            TypeError,
            LookupError,
            pa.ArrowException,
            pl.exceptions.PolarsError,
        ):
            sentence = (
                f"'{SAMPLES_FOLDER}/{file.name}' is damaged: its samples of stacks are left out."
            )
            notes.append(Note(file.name, sentence))
    if not found and not notes:
        return trace
    samples = pl.concat([pl.DataFrame(schema=SAMPLE_COLUMNS), *found])
    return trace.with_(samples=samples, notes=(*trace.notes, *notes))


def _read(file: Path, process: int, pid: int, index_of: dict[int, int]) -> pl.DataFrame:
    table = pa.Table.from_batches(read_batches(file), SAMPLES)
    rows = pl.DataFrame(table)
    index = pl.col("thread").replace_strict(index_of, default=None, return_dtype=pl.UInt16)
    return rows.select(
        pl.lit(process, pl.Int32).alias("process"),
        pl.when(pl.col("pid") == pid).then(index).alias("thread"),
        pl.col("pid", "thread_name", "start_ns", "end_ns", "frames"),
    ).cast(pl.Schema(SAMPLE_COLUMNS))
