"""What files have in common is decoded once, and only that."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from support.runs.damage import rewritten, write_run

from tracelens.distil.outline import OUTLINED
from tracelens.memory import BoundedCache
from tracelens.readers.native.plain_columns import read_usable
from tracelens.readers.native.soundness import ALWAYS_READ

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.columns import Columns


def in_next_step(table: pa.Table) -> pa.Table:
    """Return the same events, each in the next step."""
    column_index = table.column_names.index("step")
    steps = pa.chunked_array([pa.array(table["step"].to_numpy() + 1, pa.int32())])
    return table.set_column(column_index, table.schema.field("step"), steps)


def columns_of(file: Path, cache: BoundedCache) -> Columns:
    return read_usable(file, {*OUTLINED, *ALWAYS_READ}, cache).columns


def test_equal_columns_are_those_of_the_other_file(tmp_path: Path) -> None:
    """All but times, which are read again, and what differs."""
    victim, cache = write_run(tmp_path), BoundedCache()
    rewritten(victim, lambda table: table, rows=100, compression="zstd")
    columns, columns_again = columns_of(victim, cache), columns_of(victim, cache)
    rewritten(victim, in_next_step, rows=100, compression="zstd")
    other_columns = columns_of(victim, cache)
    assert (
        columns_again.number_column("thread")
        is columns.number_column("thread")
        is other_columns.number_column("thread")
    )
    assert columns_again.word_column("kind").codes is columns.word_column("kind").codes
    assert columns_again.number_column("start_ns") is not columns.number_column("start_ns")
    assert columns_again.number_column("step") is columns.number_column("step")
    assert np.array_equal(other_columns.number_column("step"), columns.number_column("step") + 1)


def test_passes_share_nothing(tmp_path: Path) -> None:
    """Each has a cache of its own, which is empty again where it is sent to."""
    victim, cache = write_run(tmp_path), BoundedCache()
    one = columns_of(victim, cache)
    for other in (BoundedCache(), pickle.loads(pickle.dumps(cache))):  # noqa: S301 - our own
        assert columns_of(victim, other).number_column("thread") is not one.number_column("thread")


@pytest.mark.parametrize("rows", [10, 40, 100])
def test_no_more_is_known_than_there_is_room_for(rows: int) -> None:
    """What is too large is made each time; several that are too much together make room."""
    cache = BoundedCache(max_rows=50)
    sets_made = []

    def make() -> int:
        sets_made.append(rows)
        return len(sets_made)

    arrays = [np.arange(rows) for _ in range(2)]
    for array in arrays:
        array.setflags(write=False)
    counts_by_room = [
        cache.get_or_make("count", [array], make)
        for array in (arrays[0], arrays[0], arrays[1], arrays[0])
    ]
    assert counts_by_room == {10: [1, 1, 2, 1], 40: [1, 1, 2, 3], 100: [1, 2, 3, 4]}[rows]


def test_arrays_that_may_change_are_not_known() -> None:
    """What is made of them is made each time."""
    cache = BoundedCache(max_rows=50)
    array = np.zeros(3, np.int64)
    assert cache.get_or_make("sum", [array], lambda: int(array.sum())) == 0
    array += 1
    assert cache.get_or_make("sum", [array], lambda: int(array.sum())) == 3
