"""Horovod's timelines: of each operation when ranks were ready, all by the clock of rank 0."""

import json
from pathlib import Path

import polars as pl
import pytest
from support import horovod_timeline as horovod

import tracelens as tl
from tracelens.cli import main
from tracelens.errors import EmptyTrace
from tracelens.readers import READERS

FORMAT = "timeline of Horovod"


def write_timeline(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_operations_of_all_ranks(tmp_path: Path) -> None:
    """Each from when its rank was ready; the others wait from their last tensor on."""
    file = write_timeline(tmp_path / "timeline.json", horovod.timeline(3, 5))
    assert next(reader.name for reader in READERS if reader.sniff(file)) == FORMAT
    trace = tl.open(file)
    assert trace.workers["rank"].to_list() == [0, 1, 2]
    assert trace.alignment.method == "same_clock"
    assert trace.steps["step"].n_unique() == 5
    rows = trace.events.with_columns(pl.col("kind", "op", "name").cast(pl.String)).collect()
    calls = rows.filter(kind="reduction")
    assert calls["op"].unique().to_list() == ["allreduce"]
    assert calls.group_by("rank").len()["len"].to_list() == [15, 15, 15]
    assert calls["bytes"].unique().to_list() == [horovod.NBYTES]
    assert (calls["start_ns"] >= horovod.BEGAN_US * 1_000).all()
    waits = rows.filter(kind="wait")
    assert waits.height == 15
    assert waits["status"].cast(pl.String).unique().to_list() == ["estimated"]


def test_who_is_late_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_timeline(tmp_path / "timeline.json", horovod.timeline(4, 60, late=2))
    assert main(["analyze", "--no-keep", str(file)]) in {0, 1}
    output = capsys.readouterr().out
    assert "STRAGGLER rank 2, uninstrumented code" in output
    file = write_timeline(tmp_path / "healthy.json", horovod.timeline(4, 60))
    assert main(["analyze", "--no-keep", str(file)]) in {0, 1}
    output = capsys.readouterr().out
    assert "INCONCLUSIVE" in output
    assert "STRAGGLER" not in output


def test_operations_from_the_cache_say_nothing_of_ranks(tmp_path: Path) -> None:
    """Only rank 0 is known then, and what would help is said."""
    trace = tl.open(write_timeline(tmp_path / "timeline.json", horovod.timeline(3, 5, marks=False)))
    assert trace.workers["rank"].to_list() == [0]
    assert trace.steps["step"].n_unique() == 5
    assert trace.recognition
    gap = trace.recognition.gaps[0]
    assert "15 of 15 operations" in gap.missing
    assert "HOROVOD_CACHE_CAPACITY=0" in gap.advice
    assert gap.is_decisive


def test_where_most_come_from_the_cache_the_first_step_says_how_many_ranks_there_are(
    tmp_path: Path,
) -> None:
    first, later = (json.loads(horovod.timeline(3, 8, marks=marks)) for marks in (True, False))
    begin = next(at for at, event in enumerate(first) if event.get("ph") == "B")
    events = first[: begin + 10] + later[begin + 7 :]
    trace = tl.open(write_timeline(tmp_path / "timeline.json", json.dumps(events).encode()))
    assert trace.workers["rank"].to_list() == [0]
    assert trace.recognition
    assert "other of 3 ranks" in trace.recognition.gaps[0].missing
    assert trace.steps["step"].n_unique() == 8


def test_activities_are_told_as_shares(tmp_path: Path) -> None:
    trace = tl.open(write_timeline(tmp_path / "timeline.json", horovod.timeline(2, 5)))
    assert trace.recognition
    assert "NCCL_ALLREDUCE 100%" in dict(trace.recognition.facts)["operations of rank 0"]


def test_what_happens_once_is_in_no_step(tmp_path: Path) -> None:
    """As the broadcast of weights before the first step."""
    events = json.loads(horovod.timeline(2, 5))
    once = [
        {"name": "process_name", "ph": "M", "pid": 9, "args": {"name": "broadcast.weights"}},
        {"ph": "B", "name": "NEGOTIATE_BROADCAST", "ts": 10, "pid": 9},
        {"ph": "X", "name": "0", "ts": 10, "pid": 9, "dur": 0},
        {"ph": "X", "name": "1", "ts": 20, "pid": 9, "dur": 0},
        {"ph": "E", "ts": 20, "pid": 9},
        {"ph": "B", "name": "BROADCAST", "ts": 30, "pid": 9},
        {"ph": "E", "ts": 60, "pid": 9},
    ]
    file = write_timeline(
        tmp_path / "timeline.json", json.dumps(events[:1] + once + events[1:]).encode()
    )
    rows = tl.open(file).events.filter(pl.col("op").cast(pl.String) == "broadcast").collect()
    assert rows["step"].unique().to_list() == [-1]
    assert rows["rank"].to_list() == [0, 1]
    assert tl.open(file).steps["step"].n_unique() == 5


def test_damage_is_counted(tmp_path: Path) -> None:
    """An end without a begin, a mark of no rank, an operation that does not end."""
    events = json.loads(horovod.timeline(2, 5))
    events += [
        {"ph": "E", "ts": 1, "pid": 1},
        {"ph": "X", "name": "none", "ts": 1, "pid": 1, "dur": 0},
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 10**7, "pid": 1},
        "no event",
    ]
    trace = tl.open(write_timeline(tmp_path / "timeline.json", json.dumps(events).encode()))
    assert sum(trace.dropped.values()) == 3
    assert trace.recognition
    assert dict(trace.recognition.left_out)["operations that do not end"] == 1


def test_a_timeline_that_was_cut_off(tmp_path: Path) -> None:
    content = horovod.timeline(2, 20)
    trace = tl.open(write_timeline(tmp_path / "timeline.json", content[: len(content) // 2]))
    assert any(note.kind == "truncated" for note in trace.notes) or trace.steps.height < 40
    begun = json.dumps(json.loads(content)[:1]).encode()
    with pytest.raises(EmptyTrace):
        tl.open(write_timeline(tmp_path / "empty.json", begun))
