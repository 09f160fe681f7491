"""What py-spy writes becomes runs of equal stacks, on the rank's clock."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tracelens_instrument.stacks.timeline import (
    MARKER,
    Run,
    find_clock_offset_ns,
    read_runs,
    run_marker,
)

if TYPE_CHECKING:
    from pathlib import Path

MAIN = {"pid": 7, "tid": 70}
OTHER = {"pid": 7, "tid": 71}


def _event(thread: dict[str, int], phase: str, moment: float, name: str, **where: Any) -> Any:
    places = {"filename": "", "line": 0} | where
    return {**thread, "ph": phase, "ts": moment, "name": name, "cat": "py-spy", "args": places}


def _timeline(tmp_path: Path, *events: Any) -> list[Run]:
    file = tmp_path / "timeline.json"
    file.write_text(json.dumps(events))
    return list(read_runs(file))


def _opening(thread: dict[str, int], moment: float, number: int, name: str) -> list[Any]:
    return [
        _event(thread, "B", moment, 'process 7:"python"'),
        _event(thread, "B", moment, f"thread ({number}): {name}"),
    ]


def test_a_run_lasts_until_the_stack_changes(tmp_path: Path) -> None:
    """Frames are listed outermost first, with file and line, without those of py-spy."""
    runs = _timeline(
        tmp_path,
        *_opening(MAIN, 0, 1234, "MainThread"),
        _event(MAIN, "B", 0, "train", filename="train.py", line=3),
        _event(MAIN, "B", 20, "load", filename="data.py", line=9),
        _event(MAIN, "E", 50, "load", filename="data.py", line=9),
        _event(MAIN, "E", 60, "train", filename="train.py", line=3),
    )
    train, load = "train (train.py:3)", "load (data.py:9)"
    assert [(run.start_ns, run.end_ns, run.frames) for run in runs] == [
        (0, 20_000, (train,)),
        (20_000, 50_000, (train, load)),
        (50_000, 60_000, (train,)),
    ]
    assert {(run.pid, run.thread_id, run.thread_name) for run in runs} == {(7, 1234, "MainThread")}


def test_threads_have_stacks_of_their_own(tmp_path: Path) -> None:
    """What is still open at the end has lasted until the last sample of all."""
    runs = _timeline(
        tmp_path,
        *_opening(MAIN, 0, 1, "MainThread"),
        _event(MAIN, "B", 0, "train", filename="train.py", line=3),
        *_opening(OTHER, 10, 2, "loader (pid 5): x"),
        _event(OTHER, "B", 10, "fetch", filename="data.py", line=1),
        _event(MAIN, "E", 30, "train", filename="train.py", line=3),
    )
    assert [(run.thread_id, run.thread_name, run.start_ns, run.end_ns) for run in runs] == [
        (1, "MainThread", 0, 30_000),
        (2, "loader (pid 5): x", 10_000, 30_000),
    ]


def test_a_broken_timeline_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "timeline.json"
    file.write_text('[{"ts": 1, ')
    with pytest.raises(ValueError, match="Expecting"):
        list(read_runs(file))


def test_markers_give_the_offset() -> None:
    """Stamps are late by what they like: the least late one tells."""
    true, marked, sampled_runs = 5_000_000_000, {}, []
    for number, lag in enumerate((9_000, 400, 7_000, 80_000)):
        begin, end = true + number * 10**6, true + number * 10**6 + 500_000
        marked[f"{MARKER}{number}"] = (begin, end)
        run = Run(7, 1, "", begin - true + lag, end - true + 2 * lag, (f"{MARKER}{number} (x:1)",))
        sampled_runs += [run, replace(run, frames=("other (x:2)",))]
    assert find_clock_offset_ns(sampled_runs, marked) == true - 400


def test_too_few_markers_tell_nothing() -> None:
    run = Run(7, 1, "", 0, 10, (f"{MARKER}0 (x:1)",))
    assert find_clock_offset_ns([run], {f"{MARKER}0": (5, 15)}) is None


def test_a_marker_has_a_number_and_lasts_its_time() -> None:
    ((name, (begin, end)),) = run_marker(12).items()
    assert name == f"{MARKER}12"
    assert end - begin >= 20_000_000
