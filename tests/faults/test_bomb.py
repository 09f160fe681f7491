"""A small file that would become a huge table is refused before anything is decompressed."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from support.runs.damage import assert_left_out, rewritten, write_run
from support.tiers import mark_slow

from tracelens import load

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 6_000_000


def huge(table: pa.Table) -> pa.Table:
    """Repeat the first row until decompressed it needs some 600 MB."""
    columns = []
    for name in table.column_names:
        chunk = table[name].combine_chunks().slice(0, 1)
        if isinstance(chunk, pa.DictionaryArray):
            zeros = np.zeros(ROWS, chunk.type.index_type.to_pandas_dtype())
            kind = chunk.type.value_type
            word = pa.array(["word"] if pa.types.is_string(kind) else [0], kind)
            columns.append(pa.DictionaryArray.from_arrays(zeros, word))
        else:
            columns.append(pa.repeat(chunk[0], ROWS))
    return pa.Table.from_arrays(columns, schema=table.schema)


@pytest.mark.parametrize("checksums", mark_slow([False, True], quick=[True]))
def test_a_decompression_bomb_is_refused(tmp_path: Path, *, checksums: bool) -> None:
    """The sentence says what it would have become; memory does not grow by it."""
    victim = write_run(tmp_path)
    rewritten(victim, huge, checksums=checksums, compression="zstd")
    assert victim.stat().st_size < 1_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert_left_out(tmp_path, "bytes would become more than", "when decompressed")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100_000  # kilobytes


def test_very_regular_trace_is_no_bomb(tmp_path: Path) -> None:
    """Real traces compress well, too: identical events from end to end are still read."""
    victim = write_run(tmp_path)
    rows = 100_000

    def regular(table: pa.Table) -> pa.Table:
        many = pa.concat_tables([table.slice(0, 1)] * 10)
        many = pa.concat_tables([many] * (rows // 10)).combine_chunks().unify_dictionaries()
        return pa.Table.from_arrays(many.columns, schema=table.schema)

    rewritten(victim, regular, compression="zstd")
    trace = load.open(tmp_path)
    assert trace.notes == ()
    assert trace.processes["events"][1] == rows
