"""Columns and versions are checked by name and type before anything is decoded."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from support.runs.damage import RUN, assert_left_out, assert_same, rewritten, with_side, write_run
from support.runs.traces import span, trace_of

from tracelens import load
from tracelens.errors import NewerVersion
from tracelens.schema.side import METADATA_KEY
from tracelens.schema.vocabulary import SCHEMA_VERSION
from tracelens.simulator.synthetic import write

if TYPE_CHECKING:
    from pathlib import Path


def newer(table: pa.Table) -> pa.Table:
    return with_side(table, lambda side: side["process"].update(schema=99))


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    rewritten(write_run(tmp_path), newer)
    assert_left_out(
        tmp_path, "schema version 99", f"reads up to {SCHEMA_VERSION}", "update TraceLens"
    )


def test_a_trace_of_newer_files_only_is_refused(tmp_path: Path) -> None:
    """If all are, the whole trace is refused for that reason."""
    write(RUN, tmp_path)
    for path in tmp_path.iterdir():
        rewritten(path, newer)
    with pytest.raises(NewerVersion, match=r"None of the 3 recordings.*schema version 99"):
        load.open(tmp_path)


@pytest.mark.parametrize("column", ["start_ns", "name", "value", "request"])
def test_a_missing_column_is_named(column: str, tmp_path: Path) -> None:
    rewritten(write_run(tmp_path), lambda table: table.drop_columns([column]))
    assert_left_out(tmp_path, f"column '{column}' is there 0 times")


def test_a_column_of_another_type_is_named(tmp_path: Path) -> None:
    """The sentence names the column of another type, and both types."""

    def floating(table: pa.Table) -> pa.Table:
        times = table["start_ns"].cast(pa.float64(), safe=False)
        return table.set_column(0, "start_ns", times)

    rewritten(write_run(tmp_path), floating)
    assert_left_out(tmp_path, "column 'start_ns' has type double, expected int64")


def test_a_foreign_arrow_file_is_no_trace(tmp_path: Path) -> None:
    """An Arrow file of somebody else is not a trace."""
    rewritten(write_run(tmp_path), lambda table: table.replace_schema_metadata({}))
    assert_left_out(tmp_path, "without TraceLens metadata")


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'{"process":3}', b"\xff\xfe", b"null"])
def test_damaged_metadata_is_refused(text: bytes, tmp_path: Path) -> None:
    """Every kind of damaged metadata is refused."""
    rewritten(
        write_run(tmp_path), lambda table: table.replace_schema_metadata({METADATA_KEY: text})
    )
    assert_left_out(tmp_path, "metadata is damaged")


WRONG_VALUES = [
    ("process", "rank", "three"),
    ("process", "rank", -1),
    ("process", "rank", 2**40),
    ("process", "rank", True),
    ("process", "role", "king"),
    ("process", "host", None),
    ("process", "incarnation", 2**70),
    ("process", "job", "x" * 100_000),
    ("process", "cores", 4),
    ("process", "core_quota", "two"),
    ("process", "core_quota", -1.0),
    ("threads", "index", 2**16),
    ("threads", "in_flight", "yes"),
    ("communicators", "ranks", ["a"]),
    ("communicators", "uid", 7),
    ("clocks", "monotonic_ns", 1.5),
]


@pytest.mark.parametrize(("table", "name", "value"), WRONG_VALUES)
def test_side_tables_of_other_types(table: str, name: str, value: object, tmp_path: Path) -> None:
    """Side tables whose values are not what they should be cost one file, not the trace."""

    def change(side: dict[str, Any]) -> None:
        row = side[table] if table == "process" else side[table][0]
        row[name] = value

    rewritten(write_run(tmp_path), lambda events: with_side(events, change))
    assert_left_out(tmp_path, "metadata is damaged", name)


def test_too_many_columns_are_refused(tmp_path: Path) -> None:
    def add_columns(table: pa.Table) -> pa.Table:
        for index in range(300):
            table = table.append_column(f"x{index}", pa.nulls(table.num_rows))
        return table

    rewritten(write_run(tmp_path), add_columns)
    assert_left_out(tmp_path, "327 columns, more than the limit")


def test_extensions_are_ignored(tmp_path: Path) -> None:
    """Columns and metadata of others, with pickles in them, are not decoded and change nothing."""
    victim = write_run(tmp_path)
    expected = load.open(tmp_path)

    def extended(table: pa.Table) -> pa.Table:
        field = pa.field(
            "evil",
            pa.binary(),
            metadata={
                "ARROW:extension:name": "arrow.py_extension_type",
                "ARROW:extension:metadata": pickle.dumps(pytest.fail),
            },
        )
        table = table.append_column(field, pa.array([b"x"] * table.num_rows))
        metadata = dict(table.schema.metadata or {})
        return table.replace_schema_metadata(metadata | {b"pandas": b"{broken"})

    rewritten(victim, extended)
    assert_same(load.open(tmp_path), expected)


def test_hand_made_trace_has_our_columns() -> None:
    """The helper that other tests rely on makes traces of the documented columns."""
    trace = trace_of([span(0, "step", 0, 10)])
    assert load.prepare(trace).steps.height == 1
