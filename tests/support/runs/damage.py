"""A written trace to damage, and the check that damage to one file costs the other ranks nothing."""

from __future__ import annotations

import io
import json
import struct
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
from polars.testing import assert_frame_equal

from tracelens import load
from tracelens.accounting import categories, phases
from tracelens.conversion.messages import (
    CHECKSUM_KEY,
    END,
    LEAD,
    MAGIC,
    NO_CHECKSUM,
    add_blocks_to_footer,
    fill_in_checksum,
    iterate_messages,
)
from tracelens.schema import side
from tracelens.simulator.synthetic import Scenario, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.model.trace import Trace

RUN = Scenario(ranks=3, steps=30)
VICTIM = "worker-00001-1001.arrow"


def write_run(folder: Path) -> Path:
    """Write a run of three ranks; return the file to damage."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in _run_files().items():
        (folder / name).write_bytes(content)
    return folder / VICTIM


@cache
def _run_files() -> dict[str, bytes]:
    """Simulate the run once; return its files."""
    with TemporaryDirectory() as folder:
        write(RUN, Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def open_held(folder: Path) -> Trace:
    """Open a run and hold its events, since its files are about to change."""
    trace = load.open(folder)
    return trace.with_(events=trace.events.collect().lazy())


def rewritten(
    path: Path,
    change: Callable[[pa.Table], pa.Table],
    *,
    checksums: bool = True,
    rows: int | None = None,
    **options: Any,
) -> None:
    """Change a file's table by hand, past all checks of ours, in batches of so many `rows`.

    With `checksums` they are right, so that it is read as a file of ours; without, as another program's.
    """
    with pa.ipc.open_file(str(path)) as reader:
        table = change(reader.read_all())
    write_options = pa.ipc.IpcWriteOptions(**options)
    if checksums:
        path.write_bytes(checked_file(table, write_options, rows))
        return
    with pa.ipc.new_file(str(path), table.schema, options=write_options) as out:
        out.write_table(table, max_chunksize=rows)


def checked_file(table: pa.Table, options: pa.ipc.IpcWriteOptions, rows: int | None) -> bytes:
    """Return a table of any columns as a file, all of whose batches have right checksums."""
    content = bytearray(LEAD)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
        for batch in table.combine_chunks().to_batches(max_chunksize=rows):
            stream.write_batch(batch, custom_metadata={CHECKSUM_KEY: NO_CHECKSUM})
            written = bytearray(sink.getvalue())
            sink.seek(0)
            sink.truncate()
            fill_in_checksum(memoryview(written))
            content += written
    content += sink.getvalue() if len(content) == len(LEAD) else END
    empty = io.BytesIO()
    pa.ipc.new_file(empty, table.schema).close()
    (size,) = struct.unpack("<i", empty.getvalue()[-10:-6])
    footer = add_blocks_to_footer(
        empty.getvalue()[-10 - size : -10], list(iterate_messages(memoryview(content)))
    )
    return bytes(content) + footer + struct.pack("<i", len(footer)) + MAGIC


def with_value(table: pa.Table, column: str, value: Any, row: int = 40) -> pa.Table:
    """Change one cell."""
    index = table.schema.get_field_index(column)
    kind = table.schema.field(index).type
    values = table[column].to_pylist()
    values[row] = value
    return table.set_column(index, table.schema.field(index), pa.array(values).cast(kind))


def with_side(table: pa.Table, change: Callable[[dict[str, Any]], None]) -> pa.Table:
    """Change a table's side tables, in their JSON; their checksum is right again afterwards."""
    metadata = dict(table.schema.metadata or {})
    tables = json.loads(metadata[side.METADATA_KEY])
    tables["communicators"] = json.loads(metadata[side.COMMUNICATORS_KEY])
    change(tables)
    metadata[side.COMMUNICATORS_KEY] = json.dumps(tables.pop("communicators")).encode()
    metadata[side.METADATA_KEY] = json.dumps(tables).encode()
    return table.replace_schema_metadata(side.with_checksum(metadata))


def assert_left_out(folder: Path, *words: str) -> Trace:
    """Check that exactly the victim is left out, in one sentence with `words`, and costs no more.

    Everything about the other ranks must be as if the victim had never been there.
    """
    trace = open_held(folder)
    (note,) = [note for note in trace.notes if note.file == VICTIM]
    assert note.kind == "unreadable"
    assert "\n" not in note.sentence
    for word in (VICTIM, *words):
        assert word in note.sentence
    assert trace.workers["rank"].to_list() == [0, 2]
    (folder / VICTIM).unlink()
    assert_same(trace, load.open(folder))
    return trace


def assert_same(actual: Trace, expected: Trace) -> None:
    """Check that two traces hold the same ranks and lead to the same results."""
    assert_frame_equal(actual.events.collect(), expected.events.collect())
    assert_frame_equal(actual.processes, expected.processes)
    assert_frame_equal(actual.arrivals, expected.arrivals)
    first, second = phases.run(actual), phases.run(expected)
    assert_frame_equal(first.segments, second.segments)
    assert_frame_equal(first.times, second.times)


def own_time(trace: Trace, rank: int) -> pl.DataFrame:
    """Return the own work of one rank, which no other rank's file can change."""
    times = phases.run(trace).times.filter(pl.col("rank") == rank)
    return times.filter(pl.col("category").cast(pl.String).is_in(categories.OWN_CATEGORIES))
