"""A reader cannot tell an Arrow file that grew over a run from one written in one go."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from support.runs.segments import PROCESS, Slot

from tracelens.conversion.arrow_file import GrowingFile, read_growing
from tracelens.conversion.columns import SLOT, DeviceTimes, make_batch, split_fields
from tracelens.conversion.definitions import tabulate_definitions
from tracelens.conversion.messages import END, LEAD, has_sound_checksum, read_footer
from tracelens.readers.native.arrow_file import read_arrow, read_end
from tracelens.schema.arrow import EVENT_SCHEMA, WRITE_OPTIONS
from tracelens.schema.side import Definition, SideTables, Summary

SIDE = SideTables(process=PROCESS)
FIRST = (Definition(1, "one", "user"), Definition(2, "two", "ps", op="push"))
LATER = (Definition(3, "three", "reduction", op="allreduce", algorithm="ring"),)


def batch(definitions: tuple[Definition, ...], *ids: int) -> pa.RecordBatch:
    """One closed span of each definition, at a time that is its number."""
    content = b"".join(Slot(start_ns=n, end_ns=n + 1, definition=n).pack() for n in ids)
    records = np.frombuffer(content, SLOT)
    meanings = tabulate_definitions(definitions)
    rows = meanings.find_rows(records["definition"])
    return make_batch(
        split_fields(records),
        rows,
        np.zeros(len(rows), np.int64),
        meanings,
        DeviceTimes.from_records(None),
    )


def grow(path: Path, *, killed: bool) -> list[str]:
    """Write a file in two goes, between which words are added; return the names in it."""
    with GrowingFile(path, SIDE) as file:
        file.append_batch(batch(FIRST, 1, 2, 1))
        whole_bytes = file.length_bytes
        if killed:
            file.append_batch(batch(FIRST, 2, 2))  # not accounted for
    if killed:
        path.write_bytes(path.read_bytes()[:-7])
    with GrowingFile(path, SIDE, whole_bytes) as file:
        file.append_batch(batch(FIRST, 2))
        file.append_batch(batch(FIRST + LATER, 3, 1))
        file.finish(SideTables(process=PROCESS, complete=True, dropped={"reason": 7}))
    return ["one", "two", "one", "two", "three", "one"]


@pytest.mark.parametrize("killed", [False, True])
def test_every_reader_reads_it(tmp_path: Path, *, killed: bool) -> None:
    """By its footer or as a stream, by Arrow's library or another, it says the same."""
    path = tmp_path / "t.arrow"
    names = grow(path, killed=killed)
    with pa.ipc.open_file(str(path)) as reader:
        assert reader.num_record_batches == 3
        by_footer = reader.read_all()
        assert reader.get_batch(1)["name"].to_pylist() == ["two"]  # in any order
    by_footer.validate(full=True)
    as_stream = pa.ipc.open_stream(path.read_bytes()[8:]).read_all()
    others: Any = pl.read_ipc(path)
    for found in (by_footer["name"].to_pylist(), as_stream["name"].to_pylist(), [*others["name"]]):
        assert found == names
    assert by_footer["op"].to_pylist() == [None, "push", None, "push", "allreduce", None]
    assert by_footer.to_pylist() == as_stream.to_pylist()


def test_the_end_has_the_last_word(tmp_path: Path) -> None:
    """Side tables are those of the end; of a file that was cut off, those of its beginning."""
    path = tmp_path / "t.arrow"
    grow(path, killed=False)
    recording = read_arrow(path)
    assert (recording.side_tables.complete, recording.side_tables.dropped, recording.is_cut) == (
        True,
        {"reason": 7},
        False,
    )
    path.write_bytes(path.read_bytes()[:-1])
    recording = read_arrow(path)
    assert (recording.side_tables.complete, recording.side_tables.process, recording.is_cut) == (
        False,
        PROCESS,
        True,
    )
    assert recording.table.num_rows == 6


@pytest.mark.parametrize("killed", [False, True])
def test_checksums_and_summary_of_a_file_in_two_goes(tmp_path: Path, *, killed: bool) -> None:
    """Each batch has the right checksum, and the summary counts what was there before, too."""
    path = tmp_path / "t.arrow"
    grow(path, killed=killed)
    content = memoryview(path.read_bytes())
    begin_offset = len(LEAD)
    for place in read_footer(content).batch_messages:
        assert has_sound_checksum(content, begin_offset, place)
        begin_offset = place.end_bytes
    end = read_end(path)
    assert end is not None
    assert end.summary == Summary(
        rows=6,
        spans=6,
        steps=1,
        first_ns=1,
        last_ns=4,
        dropped=7,
        kinds=["ps", "reduction", "user"],
    )


def test_a_rank_that_is_known_late(tmp_path: Path) -> None:
    """The whole file says whose it is as it was known at the end."""
    path = tmp_path / "t.arrow"
    with GrowingFile(path, SIDE) as file:
        file.append_batch(batch(FIRST, 1, 2))
        file.finish(replace(SIDE, process=replace(PROCESS, rank=7)))
    table: Any = pl.read_ipc(path)
    stem = f"worker-00007-{PROCESS.pid}"
    assert table.select("rank", "process").rows() == [(7, stem), (7, stem)]
    assert read_arrow(path).table.num_rows == 2


def test_a_file_of_schema_1_goes_on_in_it(tmp_path: Path) -> None:
    """What an older TraceLens began is finished as it would have done, and read."""
    path = tmp_path / "t.arrow"
    older = replace(SIDE, process=replace(PROCESS, schema=1))
    with path.open("wb") as file:
        file.write(LEAD)
        schema = EVENT_SCHEMA.with_metadata(older.to_metadata())
        with pa.ipc.new_stream(file, schema, options=WRITE_OPTIONS) as stream:
            stream.write_batch(batch(FIRST, 1, 2))
    whole = path.stat().st_size - len(END)
    with GrowingFile(path, SIDE, whole) as growing:
        growing.append_batch(batch(FIRST, 2))
        growing.finish(replace(SIDE, complete=True))
    with pa.ipc.open_file(str(path)) as reader:
        assert reader.schema.equals(EVENT_SCHEMA)
        assert list(reader.schema.metadata or {}) == [b"tracelens"]
    found = read_arrow(path)
    assert found.table["name"].to_pylist() == ["one", "two", "two"]
    assert (found.side_tables.complete, found.side_tables.process.schema, found.is_cut) == (
        True,
        1,
        False,
    )


@pytest.mark.parametrize("columns", [("start_ns",), ("value",), ("name", "kind", "seq")])
def test_only_some_columns(tmp_path: Path, columns: tuple[str, ...]) -> None:
    """They are the same as in the whole table, also where nothing is in one."""
    path = tmp_path / "t.arrow"
    grow(path, killed=False)
    whole = read_arrow(path).table
    assert read_arrow(path, columns).table.equals(
        whole.select([name for name in whole.column_names if name in columns])
    )


def test_a_file_without_batches_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    with GrowingFile(path, SIDE) as file:
        file.finish(SIDE)
    assert read_arrow(path).table.num_rows == 0
    assert pl.read_ipc(path).height == 0


def test_only_what_is_whole_is_read(tmp_path: Path) -> None:
    """While it grows, as many bytes as are said to be whole."""
    path = tmp_path / "t.unfinished"
    assert read_growing(path, 0) == []
    with GrowingFile(path, SIDE) as file:
        file.append_batch(batch(FIRST, 1))
        whole = file.length_bytes
        file.append_batch(batch(FIRST, 2))
        (found,) = read_growing(path, whole)
    assert found["name"].to_pylist() == ["one"]
