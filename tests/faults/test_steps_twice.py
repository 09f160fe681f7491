"""Step numbers that come twice in one process, as with a loop per epoch: steps are counted instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from support.runs.damage import RUN, rewritten, write_run

from tracelens import load
from tracelens.accounting import phases
from tracelens.verdicts.report import analyze

if TYPE_CHECKING:
    from pathlib import Path

EPOCH = RUN.steps // 2


def from_zero_again(table: pa.Table) -> pa.Table:
    """Number the steps of the second half as those of the first."""
    column_index = table.schema.get_field_index("step")
    recorded = table["step"].to_numpy()
    steps = np.where(recorded >= EPOCH, recorded - EPOCH, recorded)
    return table.set_column(
        column_index, table.schema.field(column_index), pa.array(steps, pa.int32())
    )


def times_of(folder: Path) -> pl.DataFrame:
    found = phases.run(load.open(folder)).times
    return found.sort("rank", "step", pl.col("category").cast(pl.String))


@pytest.mark.parametrize("ranks", [(1,), (0, 1, 2)], ids=["one rank", "all ranks"])
def test_the_same_step_number_twice(ranks: tuple[int, ...], tmp_path: Path) -> None:
    """Each time is a step of its own: nothing is merged, all times are as with numbers that rise."""
    write_run(tmp_path)
    times_before = times_of(tmp_path)
    for file in sorted(tmp_path.glob("*.arrow")):
        if int(file.name.split("-")[1]) in ranks:
            rewritten(file, from_zero_again)
    trace = load.open(tmp_path)
    assert trace.steps.group_by("rank").len()["len"].to_list() == [RUN.steps] * RUN.ranks
    assert times_of(tmp_path).equals(times_before)
    (note,) = [note for note in trace.notes if note.kind == "renumbered"]
    assert (
        f"Step numbers repeat or fall in {len(ranks)} processes (first at step 0)" in note.sentence
    )
    assert [found for found in analyze(trace).findings if found.category == "fault"] == []
