"""Cells and rows that make no sense are left out and counted; nothing else changes for them."""

from typing import Any

import pytest
from support.runs.tables import rows

from tracelens import Trace
from tracelens.errors import EmptyTrace, UnusableInput
from tracelens.verdicts.report import analyze


def sentences(trace: Trace) -> str:
    return "\n".join(note.sentence for note in trace.notes)


def test_rows_with_negative_durations_are_lost_events() -> None:
    """They are lost events of their rank, as in native traces."""
    trace = Trace.from_table({"rank": [0, 0, 1], "start": [10, 30, 10], "end": [20, 25, 12]})
    assert trace.events.collect().height == 2
    assert trace.dropped == {"negative duration": 1}
    assert trace.processes["dropped"].to_list() == [1, 0]
    assert "rows were left out: 1 for negative duration" in sentences(trace)
    (finding,) = [f for f in analyze(trace).findings if f.kind == "dropped_events"]
    assert finding.ranks == (0,)


def test_duplicates_count_once() -> None:
    """Rows that are alike in every column, also if others stand between them."""
    table = rows("rank start end name", "0 1 5 a", "0 1 5 b", "0 1 5 a", "1 1 5 a", "0 1 5 a")
    trace = Trace.from_table(table)
    assert trace.events.collect().select("rank", "name").rows() == [(0, "a"), (0, "b"), (1, "a")]
    assert "2 rows repeat another" in sentences(trace)
    assert trace.dropped == {}


def test_unreadable_cells_cost_the_row_only_where_needed() -> None:
    """Text among numbers: where it is needed the row goes, elsewhere only the cell."""
    table = {
        "rank": [0, "zero", 0, 1.0, 1.5, -1],
        "start": [1, 2, "soon", 4, 5, 6],
        "end": [2, 3, 4, 5, 6, 7],
        "step": [0, 0, 0, "?", 1, 1],
    }
    trace = Trace.from_table(table, one_clock=True)
    assert trace.events.collect().select("rank", "start_ns").rows() == [(0, 1), (1, 4)]
    assert trace.dropped == {"rank unreadable": 2, "no rank": 1, "start unreadable": 1}
    notes = sentences(trace)
    assert "In column 'rank' 2 cells hold something else than a whole number, first 'zero'" in notes
    assert (
        "In column 'start' 1 cell holds something else than a time, first 'soon' in row 3" in notes
    )
    assert "In column 'step' 1 cell holds" in notes


@pytest.mark.parametrize("absent", ["", " ", "-1", "nan", "NULL", "None", "NaT", "n/a"])
def test_what_does_not_apply(absent: str) -> None:
    """Empty in any spelling is not wrong."""
    columns = ("step", "bytes", "seq", "peer", "shard", "host", "thread", "communicator", "end")
    table = {"rank": ["0"], "start": ["1"], **{name: [absent] for name in columns}}
    table = {name: [*cells, *cells] for name, cells in table.items()} | {"end": ["4", absent]}
    trace = Trace.from_table(table)
    assert not any(note.kind in {"dropped", "unreadable"} for note in trace.notes)
    events = trace.events.collect()
    assert set(events["end_ns"]) == {4, None}
    for name in ("bytes", "seq", "peer", "shard", "communicator"):
        assert events[name].null_count() == 2


def test_times_before_zero() -> None:
    """Zero may be any moment of the run: all times move together."""
    trace = Trace.from_table({"rank": [0, 0], "start": [-500, 100], "end": [-400, 200]})
    assert trace.events.collect().select("start_ns", "end_ns").rows() == [(0, 100), (600, 700)]


@pytest.mark.parametrize("value", [10**19, -(10**19), 2**63 - 1, 1e300, float("inf")])
def test_rows_with_absurd_times_are_dropped(value: Any) -> None:
    """Times that no clock shows leave out their row, not the table."""
    table = {"rank": ["0", "0"], "start_ns": ["5", str(value)], "end_ns": ["9", str(value)]}
    trace = Trace.from_table(table)
    assert trace.events.collect()["start_ns"].to_list() == [5]
    assert trace.dropped == {"start unreadable": 1}


@pytest.mark.parametrize("value", [2**31, 2**40, -7, "3x"])
def test_rows_with_absurd_ranks_are_dropped(value: Any) -> None:
    """Rows with impossible ranks are dropped, too."""
    trace = Trace.from_table({"rank": [3, value], "start_ns": [5, 5], "end_ns": [9, 9]})
    assert trace.processes["rank"].to_list() == [3]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"rank": ["a"], "start": [1], "end": [2]}, "first 'a' in row 1"),
        ({"rank": [None], "start": [1], "end": [2]}, "required cells are empty"),
        ({"rank": [[0]], "start": [1], "end": [2]}, "something else than a whole number"),
        ({"rank": [True], "start": [1], "end": [2]}, "something else than a whole number"),
        ({"rank": [0], "start": [5], "end": [2]}, "not one has an end after its begin"),
        ({"rank": [0], "start": [b"x"], "end": [2]}, "something else than a time"),
    ],
)
def test_a_table_without_a_usable_row_is_refused(table: dict[str, Any], said: str) -> None:
    """The sentence names the first reason."""
    with pytest.raises(UnusableInput) as error:
        Trace.from_table(table)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_table_without_rows_is_an_empty_trace() -> None:
    with pytest.raises(EmptyTrace, match="not one row"):
        Trace.from_table({"rank": [], "start": [], "end": []})
