"""A written trace to damage, and the check that damage to one file costs the other ranks nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
from polars.testing import assert_frame_equal

from tracelens import load
from tracelens.accounting import phases
from tracelens.simulator.synthetic import Scenario, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracelens.model.trace import Trace

RUN = Scenario(ranks=3, steps=30)
VICTIM = "worker-00001-1001.arrow"


def written(folder: Path) -> Path:
    """Write a run of three ranks; return the file to damage."""
    write(RUN, folder)
    return folder / VICTIM


def rewritten(path: Path, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
    """Change a file's table by hand, past all checks of ours."""
    with pa.ipc.open_file(str(path)) as reader:
        table = change(reader.read_all())
    with pa.ipc.new_file(str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as out:
        out.write_table(table)


def assert_left_out(folder: Path, *words: str) -> Trace:
    """Check that exactly the victim is left out, in one sentence with `words`, and costs no more.

    Everything about the other ranks must be as if the victim had never been there.
    """
    trace = load.open(folder)
    (note,) = [note for note in trace.notes if note.file == VICTIM]
    assert note.kind == "unreadable"
    assert "\n" not in note.sentence
    for word in (VICTIM, *words):
        assert word in note.sentence
    assert trace.workers["rank"].to_list() == [0, 2]
    (folder / VICTIM).unlink()
    assert_same(trace, load.open(folder))
    return trace


def assert_same(found: Trace, expected: Trace) -> None:
    """Check that two traces hold the same ranks and lead to the same results."""
    assert_frame_equal(found.events.collect(), expected.events.collect())
    assert_frame_equal(found.processes, expected.processes)
    assert_frame_equal(found.arrivals, expected.arrivals)
    first, second = phases.run(found), phases.run(expected)
    assert_frame_equal(first.segments, second.segments)
    assert_frame_equal(first.times, second.times)


def own_time(trace: Trace, rank: int) -> pl.DataFrame:
    """Return the own work of one rank, which no other rank's file can change."""
    times = phases.run(trace).times.filter(pl.col("rank") == rank)
    return times.filter(pl.col("category").cast(pl.String).is_in(phases.COMPUTE_CATEGORIES))
