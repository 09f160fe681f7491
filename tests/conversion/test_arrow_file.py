"""An Arrow file that grew over a run is one like any other, to every reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from support.runs.segments import PROCESS, Slot

from tracelens.conversion.arrow_file import GrowingFile, read_growing
from tracelens.conversion.columns import SLOT, OnDevice, split, to_batch
from tracelens.conversion.definitions import meanings_of
from tracelens.readers.native.arrow_file import read_arrow
from tracelens.schema.side import Definition, SideTables

if TYPE_CHECKING:
    from pathlib import Path

SIDE = SideTables(process=PROCESS)
FIRST = (Definition(1, "one", "user"), Definition(2, "two", "ps", op="push"))
LATER = (Definition(3, "three", "reduction", op="allreduce", algorithm="ring"),)


def batch(definitions: tuple[Definition, ...], *ids: int) -> pa.RecordBatch:
    """One closed span of each definition, at a time that is its number."""
    content = b"".join(Slot(start_ns=n, end_ns=n + 1, definition=n).pack() for n in ids)
    records = np.frombuffer(content, SLOT)
    meanings = meanings_of(definitions)
    rows = meanings.rows(records["definition"])
    return to_batch(
        split(records), rows, np.zeros(len(rows), np.int64), meanings, OnDevice.of(None)
    )


def grow(path: Path, *, killed: bool) -> list[str]:
    """Write a file in two goes, between which words are added; return the names in it."""
    with GrowingFile(path, SIDE) as file:
        file.append(batch(FIRST, 1, 2, 1))
        whole = file.length
        if killed:
            file.append(batch(FIRST, 2, 2))  # not accounted for
    if killed:
        path.write_bytes(path.read_bytes()[:-7])
    with GrowingFile(path, SIDE, whole) as file:
        file.append(batch(FIRST, 2))
        file.append(batch(FIRST + LATER, 3, 1))
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
    found = read_arrow(path)
    assert (found.side.complete, found.side.dropped, found.cut) == (True, {"reason": 7}, False)
    path.write_bytes(path.read_bytes()[:-1])
    found = read_arrow(path)
    assert (found.side.complete, found.side.process, found.cut) == (False, PROCESS, True)
    assert found.table.num_rows == 6


def test_nothing_in_it(tmp_path: Path) -> None:
    """A file without a batch is whole, too."""
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
        file.append(batch(FIRST, 1))
        whole = file.length
        file.append(batch(FIRST, 2))
        (found,) = read_growing(path, whole)
    assert found["name"].to_pylist() == ["one"]
