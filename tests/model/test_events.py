"""Events are read process by process when they are collected, and only as far as they are asked for."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from support.runs.scenarios import HEALTHY

from tracelens import load
from tracelens.model.trace import EVENT_COLUMNS, Trace
from tracelens.readers.native import arrow_file, assemble
from tracelens.simulator.synthetic import generate, write


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("events") / "run"
    write(HEALTHY, folder)
    return load.open(folder)


def test_they_are_those_of_a_run_in_memory(trace: Trace) -> None:
    """Read from files or held, aligned events are the same."""
    order = ["process", "start_ns", "depth", "thread"]
    expected = load.prepare(generate(HEALTHY)).events.collect().sort(order)
    assert_frame_equal(trace.events.collect().sort(order), expected)


def test_columns_and_filters(trace: Trace) -> None:
    """A question by columns, rows or number gets what it would of the whole frame."""
    all_events = trace.events.collect()
    slow = (pl.col("rank") == 2) & (pl.col("kind") == "backprop")
    asked = trace.events.filter(slow).select("step", "start_ns")
    assert_frame_equal(asked.collect(), all_events.filter(slow).select("step", "start_ns"))
    assert_frame_equal(trace.events.head(7).collect(), all_events.head(7))
    assert trace.events.collect_schema() == pl.Schema(EVENT_COLUMNS)


def test_one_process_is_read_alone(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for one process has one file read."""
    read: list[str] = []
    original = arrow_file.read_arrow

    def note_and_read(path: Path, *arguments: Any, **options: Any) -> Any:
        read.append(path.name)
        return original(path, *arguments, **options)

    monkeypatch.setattr(assemble, "read_arrow", note_and_read)
    rows = trace.events_of(3)
    assert set(rows["process"]) == {3}
    assert len(set(read)) == 1
    assert trace.events_of(99).is_empty()


def test_kinds_that_no_process_has_are_not_looked_for(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outlines tell that there are no requests to servers, so no file is read for them."""
    fresh_trace = trace.with_()
    monkeypatch.setattr(assemble, "read_arrow", None)
    assert fresh_trace.requests.is_empty()
    assert fresh_trace.messages.is_empty()
