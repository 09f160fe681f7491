"""Columns are found by name, synonym and unit, or by what the user says; sentences name the rest."""

import datetime as dt
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from support.runs.tables import rows

from tracelens import Trace
from tracelens.errors import InvalidArgument, UnusableInput

MS = 1_000_000


def times(trace: Trace) -> list[tuple[int, int, int | None]]:
    found = trace.events.collect().sort("rank", "start_ns")
    return [tuple(row) for row in found.select("rank", "start_ns", "end_ns").iter_rows()]


@pytest.mark.parametrize(
    ("columns", "unit"),
    [
        ("rank start_ns end_ns", 1),
        ("Rank Start End", 1),
        ("pid begin_us end_us", 1_000),
        ("process_id startTimeMs endTimeMs", MS),
        ("worker START_S stop_s", 1_000 * MS),
        ("global_rank t_start_usec t_end_usec", 1_000),
    ],
)
def test_names_and_units(columns: str, unit: int) -> None:
    """Case, separators and humps do not count; the name states the unit."""
    trace = Trace.from_table(rows(columns, "0 10 20", "1 11 25"))
    assert times(trace) == [(0, 10 * unit, 20 * unit), (1, 11 * unit, 25 * unit)]


@pytest.mark.parametrize("length", ["dur_ms", "duration_ms", "Duration (ms)", "elapsed_ms"])
def test_length_instead_of_end(length: str) -> None:
    """A length replaces the end, in its own unit."""
    trace = Trace.from_table({"rank": [3], "ts_us": [1_000], length: [1.5]})
    assert times(trace) == [(3, MS, 2_500_000)]


def test_exact_name_wins() -> None:
    """If the plain name exists, its synonyms are ordinary columns."""
    table = {"rank": [1], "pid": [4242], "start_ns": [5], "end_ns": [9], "ts": [7], "dur": [1]}
    trace = Trace.from_table(table)
    assert times(trace) == [(1, 5, 9)]
    (note,) = [note for note in trace.notes if "Nothing is read" in note.sentence]
    assert note.sentence == "Nothing is read from the columns 'pid', 'ts', 'dur'."


class Foreign:
    """A frame of any library that speaks Arrow's C interface, as pandas and DuckDB do."""

    def __init__(self, table: Any) -> None:
        self._table: Any = pa.table(table)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "container",
    [dict, pl.DataFrame, pa.table, lambda table: pl.DataFrame(table).lazy(), Foreign],
    ids=["mapping", "polars", "arrow", "lazy", "foreign"],
)
def test_every_kind_of_table_is_read_alike(container: Any) -> None:
    table = {"rank": [0, 0], "start_ns": [1, 5], "end_ns": [4, 9], "kind": ["forward", "backprop"]}
    trace = Trace.from_table(container(table))
    assert times(trace) == [(0, 1, 4), (0, 5, 9)]


def test_numpy_columns_and_gaps() -> None:
    """NumPy columns, and floats where a gap made whole numbers floats, as pandas does."""
    table = {
        "rank": np.array([0, 1]),
        "start_ns": np.array([1, 2]),
        "end_ns": [5.0, float("nan")],
        "step": [3.0, float("nan")],
    }
    trace = Trace.from_table(table)
    assert times(trace) == [(0, 1, 5), (1, 2, None)]


def test_dates_are_times_since_1970() -> None:
    """Dates and ISO texts are moments since 1970; texts without an offset are UTC."""
    moment = dt.datetime(2025, 6, 1, 12, 0, 0, 250_000, tzinfo=dt.UTC)
    ns = 1_748_779_200_250_000_000
    frame = pl.DataFrame({"rank": [0], "start": [moment], "duration": [dt.timedelta(seconds=2)]})
    assert times(Trace.from_table(frame)) == [(0, ns, ns + 2_000 * MS)]
    for text in (
        "2025-06-01T12:00:00.25Z",
        "2025-06-01 12:00:00.250",
        "2025-06-01T14:00:00.25+02:00",
    ):
        table = {"rank": [0], "start": [text], "end": ["2025-06-01T12:00:02Z"]}
        assert times(Trace.from_table(table)) == [(0, ns, 1_748_779_202 * 1_000 * MS)]


def test_digits_are_kept() -> None:
    """Seconds since 1970 as text keep their nanoseconds, which a float would not."""
    table = {"rank": ["0"], "start_s": ["1748779200.123456789"], "dur_s": ["1e-3"]}
    (found,) = times(Trace.from_table(table))
    assert found == (0, 1_748_779_200_123_456_789, 1_748_779_200_124_456_789)


def test_whole_numbers_without_unit_are_nanoseconds() -> None:
    """Said in a note, once."""
    trace = Trace.from_table({"rank": [0], "start": [1], "end": [2]})
    (note,) = [note for note in trace.notes if "unit" in note.sentence]
    assert "'start', 'end'" in note.sentence
    assert "nanoseconds" in note.sentence


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            {"rank": [0], "start": [0.5], "end": [1.5]},
            "'start' names no unit of time, and holds frac",
        ),
        ({"rank": [0], "start": ["0.5"], "end": ["1"]}, "--map start=start_s"),
        (
            {"rank": [0], "start_us": [1], "dur": [2]},
            "'dur' names no unit of time, while 'start_us'",
        ),
        ({"pid": [0], "process": [1], "start": [1], "end": [2]}, "'process' and 'pid' could both"),
        ({"start": [1], "end": [2]}, "none of them is 'rank'"),
        ({"rank": [0], "end": [2]}, "none of them is 'start'"),
        ({"rank": [0], "start": [1]}, "has the columns 'rank', 'start': expected"),
        ({}, "The table has no column: expected"),
    ],
)
def test_what_is_missing_is_said(table: dict[str, Any], said: str) -> None:
    """One sentence: what was found, what is expected, and how to say it."""
    with pytest.raises(UnusableInput, match=r"--map") as error:
        Trace.from_table(table)
    assert said in str(error.value)


def test_columns_and_words_can_be_renamed() -> None:
    """Columns and words that nobody could guess are told."""
    table = {"who": [0], "t0": [2.5], "t1": [3.5], "what": ["fprop2"]}
    told = {"who": "rank", "t0": "start_ms", "t1": "end_ms", "what": "kind", "kind:fprop2": "fwd"}
    trace = Trace.from_table(table, map=told)
    assert times(trace) == [(0, 2_500_000, 3_500_000)]
    assert trace.events.collect()["kind"].to_list() == ["forward"]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"nothing": "rank"}, "has no column 'nothing'; it has the columns 'rank', 'start', 'end'"),
        ({"start": "begin_of_it"}, "'begin_of_it' is no column"),
        ({"kind:x": "unheard"}, "'unheard' is no kind or operation"),
        ({"role:x": "unheard"}, "'unheard' is no role"),
    ],
)
def test_renaming_what_there_is_not(told: dict[str, str], said: str) -> None:
    """A wrong renaming is the caller's mistake, and says what there is."""
    with pytest.raises(InvalidArgument) as error:
        Trace.from_table({"rank": [0], "start": [1], "end": [2]}, map=told)
    assert said in str(error.value)


@pytest.mark.parametrize("table", [7, None, "no/such/file.csv", [[1, 2], [3]], object()])
def test_what_is_no_table_is_refused(table: Any) -> None:
    with pytest.raises((InvalidArgument, UnusableInput)) as error:
        Trace.from_table(table)
    assert "\n" not in str(error.value)
