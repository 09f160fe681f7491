"""What is read past Arrow's reader is what that reads, also from a file that was tampered with."""

from __future__ import annotations

import struct
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from support.runs.damage import rewritten, write_run

from tracelens.conversion.messages import BATCH, LEAD, fill_in_checksum, iterate_messages
from tracelens.distil.outline import OUTLINED
from tracelens.errors import NotATrace
from tracelens.memory import BoundedCache
from tracelens.readers.native import plain_columns
from tracelens.readers.native.arrow_file import read_arrow
from tracelens.readers.native.plain_columns import UsableEvents, read_usable, select_usable
from tracelens.readers.native.soundness import ALWAYS_READ

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from tracelens.model.columns import Columns

NAMES = {*OUTLINED, *ALWAYS_READ}
REFUSED = (NotATrace, OSError, ValueError, LookupError, struct.error, pa.ArrowException)


def rows_of(columns: Columns) -> dict[str, list[Any]]:
    """Return all columns that hold something, with words instead of their codes."""
    values_by_column: dict[str, list[Any]] = {
        name: n.tolist() for name, n in columns.number_columns.items()
    }
    for name, column in columns.word_columns.items():
        if (column.codes >= 0).any():
            words_and_none = [*column.vocabulary, None]
            values_by_column[name] = [words_and_none[code] for code in column.codes.tolist()]
    for name, values in columns.value_columns.items():
        if not np.isnan(values).all():
            values_by_column[name] = np.nan_to_num(values, nan=-1.0).tolist()
    return values_by_column


def assert_same(actual: UsableEvents, expected: UsableEvents) -> None:
    """Compare all but words that no row has."""
    assert actual.side_tables == expected.side_tables
    assert (actual.lost_by_reason, actual.is_cut) == (expected.lost_by_reason, expected.is_cut)
    assert actual.columns.row_count == expected.columns.row_count
    assert actual.columns.communicator_uids == expected.columns.communicator_uids
    assert rows_of(actual.columns) == rows_of(expected.columns)


@pytest.mark.parametrize("rows", [None, 1000, 100, 1])
def test_the_same_as_arrow_reads(
    rows: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of any size; Arrow's reader is not even asked."""
    victim = write_run(tmp_path)
    rewritten(victim, lambda table: table, rows=rows, compression="zstd")
    expected = select_usable(read_arrow(victim, NAMES))
    monkeypatch.setattr(plain_columns, "read_arrow", None)
    assert_same(read_usable(victim, NAMES, BoundedCache()), expected)


def by_kind(table: pa.Table) -> pa.Array[Any]:
    """Return the rows of a table by kind."""
    kinds = np.array(table["kind"].to_pylist(), dtype=np.str_)
    return pa.array(np.argsort(kinds, kind="stable"))


def test_columns_that_are_null_in_some_batches(tmp_path: Path) -> None:
    """Some batches hold counters only, others communicators only."""
    victim = write_run(tmp_path)
    rewritten(victim, lambda table: table.take(by_kind(table)), rows=50, compression="zstd")
    assert_same(
        read_usable(victim, NAMES, BoundedCache()), select_usable(read_arrow(victim, NAMES))
    )


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_files_of_other_writers_are_read_by_arrow(compression: str | None, tmp_path: Path) -> None:
    """What is not compressed as recorders do it is left to Arrow's reader."""
    victim = write_run(tmp_path)
    expected = select_usable(read_arrow(victim, NAMES))
    rewritten(victim, lambda table: table, compression=compression)
    assert_same(read_usable(victim, NAMES, BoundedCache()), expected)


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_changed_bytes_with_right_checksums_are_read_as_arrow_reads_them(
    first: int, tmp_path: Path
) -> None:
    """Bytes are changed, and checksums made right: what is read is still what Arrow reads.

    Arrow refuses more, as it also looks at dictionaries of columns that were not asked for.
    """
    victim = write_run(tmp_path)
    sound_bytes = victim.read_bytes()
    schema_end = next(iterate_messages(memoryview(sound_bytes))).end_bytes
    batch = next(
        message for message in iterate_messages(memoryview(sound_bytes)) if message.kind == BATCH
    )
    header = (batch.offset_bytes, batch.offset_bytes + batch.header_bytes)
    zones = [
        (schema_end, batch.end_bytes),
        header,
        (schema_end, batch.offset_bytes),
        (batch.end_bytes, len(sound_bytes)),
    ]
    compared = 0
    for seed in range(first, first + 100):
        draw, content = Random(seed), bytearray(sound_bytes)
        content[draw.randrange(*draw.choice(zones))] ^= 1 << draw.randrange(8)
        region = content[len(LEAD) : batch.end_bytes]
        try:
            fill_in_checksum(memoryview(region))
        except (struct.error, ValueError):  # there is no place for one any more
            continue
        victim.write_bytes(content[: len(LEAD)] + region + content[batch.end_bytes :])
        try:
            expected = select_usable(read_arrow(victim, NAMES))
        except REFUSED:
            continue
        assert_same(read_usable(victim, NAMES, BoundedCache()), expected)
        compared += 1
    assert compared > 20
