"""Reads the samples of call stacks that lie beside a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl
import pyarrow as pa

from tracelens.errors import NotATrace
from tracelens.readers._assemble import UNUSABLE
from tracelens.readers._checked import LATEST_NS, LONGEST_NS
from tracelens.readers._links import check_inside
from tracelens.schema.samples import SAMPLES, read_batches
from tracelens.schema.vocabulary import SAMPLES_FOLDER, TRACE_SUFFIX
from tracelens.trace import SAMPLE_COLUMNS, Note
from tracelens.words import shown_name

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.readers._assemble import Part
    from tracelens.trace import Trace

_DAMAGE: Final = (
    NotATrace,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    pa.ArrowException,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)


def with_samples(trace: Trace, folder: Path, parts: list[Part]) -> Trace:
    """Return the trace with the samples of its processes; damaged ones become notes."""
    owners = {
        file.removesuffix(TRACE_SUFFIX): process
        for process, file in trace.processes.select("process", "file").iter_rows()
    }
    sides = {part.file.removesuffix(TRACE_SUFFIX): part.side for part in parts}
    found: list[pl.DataFrame] = []
    notes: list[Note] = []
    for file in sorted((folder / SAMPLES_FOLDER).glob(f"*{TRACE_SUFFIX}")):
        shown = shown_name(file.name)
        name = shown.removesuffix(TRACE_SUFFIX)
        if name not in owners:
            continue
        index_of = {row.native_id: row.index for row in sides[name].threads if row.native_id}
        try:
            check_inside(file, folder)
            rows = _read(file, owners[name], sides[name].process.pid, index_of)
        except _DAMAGE:
            sentence = f"'{SAMPLES_FOLDER}/{shown}' is damaged: its samples of stacks are left out."
            notes.append(Note(shown, sentence))
            continue
        found.append(rows.filter(_sound()))
        notes += _lost(shown, rows.height - found[-1].height)
    if not found and not notes:
        return trace
    samples = pl.concat([pl.DataFrame(schema=SAMPLE_COLUMNS), *found])
    return trace.with_(samples=samples, notes=(*trace.notes, *notes))


def _read(file: Path, process: int, pid: int, index_of: dict[int, int]) -> pl.DataFrame:
    """Read a rank's samples, of which every buffer is looked at before anything is done with it."""
    batches = list(read_batches(file))
    for batch in batches:
        batch.validate(full=True)
    rows = pl.DataFrame(pa.Table.from_batches(batches, SAMPLES))
    index = pl.col("thread").replace_strict(index_of, default=None, return_dtype=pl.UInt16)
    return rows.select(
        pl.lit(process, pl.Int32).alias("process"),
        pl.when(pl.col("pid") == pid).then(index).alias("thread"),
        pl.col("pid", "thread_name", "start_ns", "end_ns", "frames"),
    ).cast(pl.Schema(SAMPLE_COLUMNS))


def _sound() -> pl.Expr:
    """Say which rows make sense: whose times are in order and in range, and whose frames have names."""
    start, end = pl.col("start_ns"), pl.col("end_ns")
    said = pl.col("pid", "thread_name", "frames").is_not_null()
    named = pl.col("frames").list.eval(pl.element().is_null()).list.any().not_()
    usable = start.is_between(0, LATEST_NS) & (end - start).is_between(0, LONGEST_NS)
    return pl.all_horizontal(said, named, usable).fill_null(value=False)


def _lost(file: str, count: int) -> list[Note]:
    if not count:
        return []
    sentence = f"'{SAMPLES_FOLDER}/{file}' lost samples of stacks: {count} for {UNUSABLE}."
    return [Note(file, sentence, "dropped")]
