"""What files have in common is decoded once, and only that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from support.runs.damage import rewritten, written

from tracelens.distil.outline import OUTLINED
from tracelens.memory import Known, forget
from tracelens.readers.native.plain_columns import read_usable
from tracelens.readers.native.soundness import ALWAYS_READ

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.columns import Columns


def later(table: pa.Table) -> pa.Table:
    """Return the same events, each in the next step."""
    place = table.column_names.index("step")
    steps = pa.chunked_array([pa.array(table["step"].to_numpy() + 1, pa.int32())])
    return table.set_column(place, table.schema.field("step"), steps)


def columns_of(file: Path) -> Columns:
    return read_usable(file, {*OUTLINED, *ALWAYS_READ}).columns


def test_equal_columns_are_those_of_the_other_file(tmp_path: Path) -> None:
    """All but times, which are read again, and what differs."""
    victim = written(tmp_path)
    rewritten(victim, lambda table: table, rows=100, compression="zstd")
    one, again = columns_of(victim), columns_of(victim)
    rewritten(victim, later, rows=100, compression="zstd")
    other = columns_of(victim)
    assert again.number("thread") is one.number("thread") is other.number("thread")
    assert again.word("kind").codes is one.word("kind").codes
    assert again.number("start_ns") is not one.number("start_ns")
    assert again.number("step") is one.number("step")
    assert np.array_equal(other.number("step"), one.number("step") + 1)


def test_a_pass_leaves_nothing(tmp_path: Path) -> None:
    """After it the columns of another run are not held any more."""
    victim = written(tmp_path)
    one = columns_of(victim)
    forget()
    assert columns_of(victim).number("thread") is not one.number("thread")


@pytest.mark.parametrize("rows", [10, 40, 100])
def test_no_more_is_known_than_there_is_room_for(rows: int) -> None:
    """What is too large is made each time; several that are too much together make room."""
    known: Known[int] = Known(rows=50)
    made = []

    def make() -> int:
        made.append(rows)
        return len(made)

    arrays = [np.arange(rows) for _ in range(2)]
    for array in arrays:
        array.setflags(write=False)
    found = [known.of([array], make) for array in (arrays[0], arrays[0], arrays[1], arrays[0])]
    assert found == {10: [1, 1, 2, 1], 40: [1, 1, 2, 3], 100: [1, 2, 3, 4]}[rows]


def test_arrays_that_may_change_are_not_known() -> None:
    """What is made of them is made each time."""
    known: Known[int] = Known(rows=50)
    array = np.zeros(3, np.int64)
    assert known.of([array], lambda: int(array.sum())) == 0
    array += 1
    assert known.of([array], lambda: int(array.sum())) == 3
