"""Single values that make no sense are left out and counted; everything else of the file is used."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import polars as pl
import pyarrow as pa
import pytest
from support.runs.damage import (
    RUN,
    VICTIM,
    assert_left_out,
    open_held,
    rewritten,
    with_side,
    with_value,
    write_run,
)

from tracelens import load
from tracelens.accounting import phases
from tracelens.simulator.synthetic import write
from tracelens.verdicts.report import analyze

if TYPE_CHECKING:
    from pathlib import Path

ON_DEVICE = 22  # a row whose span was timed on a device
YEAR_NS = 366 * 86_400 * 10**9
ABSURD: dict[str, tuple[str, Any, str]] = {
    "ends before it starts": ("duration_ns", -5, "negative duration"),
    "before the beginning": ("start_ns", -1, "start_ns out of range"),
    "smallest": ("start_ns", -(2**63), "start_ns out of range"),
    "largest": ("start_ns", 2**63 - 1, "start_ns out of range"),
    "lasts forever": ("duration_ns", 2**63 - 1, "duration_ns out of range"),
    "lasts two years": ("duration_ns", 2 * YEAR_NS, "duration_ns out of range"),
    "in a hundred years": ("start_ns", 100 * YEAR_NS, "start_ns a year from the others"),
    "another type": ("type", "dream", "unknown type"),
    "another status": ("status", "schroedinger", "unknown status"),
}


@pytest.mark.parametrize("name", ABSURD)
def test_an_absurd_row_is_dropped_and_counted(name: str, tmp_path: Path) -> None:
    """The row is dropped and counted by its reason, nothing overflows, and the time still adds up."""
    column, value, reason = ABSURD[name]
    victim = write_run(tmp_path)
    sound_trace = open_held(tmp_path)
    rewritten(victim, lambda table: with_value(table, column, value))
    trace = load.open(tmp_path)
    assert trace.dropped == {reason: 1}
    (note,) = trace.notes
    assert note.sentence == f"'{VICTIM}' lost events: 1 for {reason}."
    assert trace.events.collect().height == sound_trace.events.collect().height - 1
    assert trace.processes["dropped"].to_list() == [0, 1, 0]
    times = phases.run(trace).times.group_by("process", "step").agg(pl.col("ns").sum())
    assert times.height == RUN.ranks * RUN.steps


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("device_start_ns", -5),
        ("device_start_ns", 2**63 - 1),
        ("device_duration_ns", -5),
        ("device_duration_ns", 2**63 - 1),
        ("stream", None),
        ("stream", 2**16 - 1),
    ],
)
def test_absurd_device_times(column: str, value: int | None, tmp_path: Path) -> None:
    """A span without sense on its device has no times there; the time still adds up."""
    write(replace(RUN, on_device=True), tmp_path)
    rewritten(tmp_path / VICTIM, lambda table: with_value(table, column, value, ON_DEVICE))
    trace = load.open(tmp_path)
    assert trace.dropped == {}
    times = phases.run(trace).times.group_by("process", "step").agg(pl.col("ns").sum())
    assert times.height == RUN.ranks * RUN.steps


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_counter_that_is_no_number_has_no_value(value: float, tmp_path: Path) -> None:
    victim = write_run(tmp_path)
    rewritten(victim, lambda table: with_value(table, "value", value))
    values = load.open(tmp_path).events.collect()["value"].drop_nulls()
    assert values.is_finite().all()


def test_an_unknown_communicator_matches_nobody(tmp_path: Path) -> None:
    """A communicator that the file does not describe matches with nobody."""
    victim = write_run(tmp_path)
    rewritten(victim, lambda table: with_value(table, "communicator", 77))
    trace = load.open(tmp_path)
    assert trace.events.collect()["communicator"].n_unique() == 2  # the world, and none


def test_unknown_kind_is_user_time(tmp_path: Path) -> None:
    """A kind that this version does not know is the user's own work."""
    victim = write_run(tmp_path)
    rewritten(victim, lambda table: with_value(table, "kind", "teleport"))
    found = phases.run(load.open(tmp_path)).times
    assert found["ns"].sum() > 0


@pytest.mark.parametrize("column", ["name", "kind", "type", "status", "thread", "depth", "step"])
def test_nothing_where_something_must_be(column: str, tmp_path: Path) -> None:
    """A row that lacks what every row has is dropped and counted; the analyses go through."""
    victim = write_run(tmp_path)
    rewritten(victim, lambda table: with_value(table, column, None))
    trace = load.open(tmp_path)
    assert trace.dropped == {f"no {column}": 1}
    analyze(trace)


def test_a_name_that_is_nothing_in_the_dictionary(tmp_path: Path) -> None:
    """Arrow lets a dictionary hold nothing as a word; it is nothing all the same."""
    victim = write_run(tmp_path)

    def hollow(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index("name")
        names = cast("pa.DictionaryArray[Any, Any]", table["name"].combine_chunks())
        words = [None, *names.dictionary.to_pylist()[1:]]
        rows = pa.DictionaryArray.from_arrays(names.indices, pa.array(words, pa.string()))
        return table.set_column(index, table.schema.field(index), rows)

    rewritten(victim, hollow)
    trace = load.open(tmp_path)
    assert trace.dropped["no name"] > 0
    assert trace.events.collect()["name"].null_count() == 0
    analyze(trace)


@pytest.mark.parametrize(("field", "value"), [("world", 2**31 - 1), ("rank", 2**31 - 1)])
def test_more_ranks_than_any_job_has(field: str, value: int, tmp_path: Path) -> None:
    """A rank or a world beyond all bounds costs its file; nothing is made as large as it says."""
    victim = write_run(tmp_path)

    def change(table: pa.Table) -> pa.Table:
        return with_side(table, lambda side: side["process"].update({field: value}))

    rewritten(victim, change)
    assert_left_out(tmp_path, "metadata is damaged", f"Process.{field} is {value}")


@pytest.mark.parametrize("column", ["device_start_ns", "device_duration_ns"])
def test_half_of_a_time_on_a_device(column: str, tmp_path: Path) -> None:
    """A begin without a length, or a length without a begin, is no time on a device."""
    write(replace(RUN, on_device=True), tmp_path)

    def halved(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(column)
        return table.set_column(
            index, table.schema.field(index), pa.nulls(table.num_rows, pa.int64())
        )

    rewritten(tmp_path / VICTIM, halved)
    trace = load.open(tmp_path)
    mine = trace.events.filter(pl.col("rank") == 1).collect()
    assert mine["device_start_ns"].count() == mine["device_duration_ns"].count() == 0
    segments = phases.run(trace).segments
    assert segments["start_ns"].dtype == pl.Int64
