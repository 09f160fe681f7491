"""What a killed or still running process left as segments is read like any other file."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from support.launch.patience import PATIENCE_S
from support.launch.recording import clean_environment
from support.runs.damage import own_time, write_run
from support.runs.segments import PROCESS, Slot, write_folder

from tracelens import load
from tracelens.accounting import phases
from tracelens.conversion import segments
from tracelens.errors import NotATrace, TraceNotFound
from tracelens.schema.host import clock_domain, host_name
from tracelens.schema.ownership import mark

if TYPE_CHECKING:
    import pyarrow as pa

    from tracelens.schema.side import SideTables

KILLED = """
import os, signal, sys
from tracelens_instrument import recorder as tl
tl.start(sys.argv[1], rank=3, world=4)
work = tl.span("work", kind="forward")
for number in range(5):
    with tl.step(number):
        with work:
            if number == 4:
                os.kill(os.getpid(), signal.SIGKILL)
"""
RUNNING = """
import sys
from tracelens_instrument import recorder as tl
tl.start(sys.argv[1], rank=3, world=4)
with tl.step(0):
    print("ready", flush=True)
    sys.stdin.read()
"""


def run_and_kill(folder: Path) -> None:
    """Record rank 3 until it is killed in the forward span of its fifth step."""
    child = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder)],
        env=clean_environment(),
        check=False,
        timeout=PATIENCE_S,
    )
    assert child.returncode == -signal.SIGKILL


@pytest.mark.end_to_end
def test_a_killed_rank_keeps_its_closed_spans(tmp_path: Path) -> None:
    """Its closed spans are complete and its last span is open; the other ranks are unchanged."""
    write_run(tmp_path)
    sound_trace = load.open(tmp_path)
    run_and_kill(tmp_path)
    (segments,) = tmp_path.glob("*.segments")
    trace = load.open(tmp_path)
    mine = trace.spans.filter(pl.col("rank") == 3).collect()
    work = mine.filter(pl.col("name") == "work").sort("start_ns")
    assert work["status"].to_list() == ["closed"] * 4 + ["open"]
    assert work["step"].to_list() == [0, 1, 2, 3, 4]
    (note,) = trace.notes
    assert note.kind == "incomplete"
    assert "did not end its recording itself" in note.sentence
    assert trace.workers["complete"].to_list() == [True, True, True, False]
    for rank in range(3):
        assert (
            own_time(trace, rank)
            .drop("process")
            .equals(own_time(sound_trace, rank).drop("process"))
        )
    assert phases.run(trace).times.filter(pl.col("rank") == 3)["step"].n_unique() == 5
    # Its process is gone, so its segments have become a file, which reads the same.
    assert not segments.exists()
    again = load.open(tmp_path)
    assert again.events.collect().equals(trace.events.collect())
    assert again.notes == trace.notes


@pytest.mark.end_to_end
def test_killed_rank_in_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be written the segments are decoded in memory, and stay."""
    run_and_kill(tmp_path)
    monkeypatch.setattr("os.access", lambda *_args, **_more: False)
    trace = load.open(tmp_path)
    assert trace.steps.height == 5
    assert len(list(tmp_path.glob("*.segments"))) == 1


@pytest.mark.end_to_end
def test_a_running_rank_is_read_up_to_now(tmp_path: Path) -> None:
    """A process that still records is read up to now, and its segments are left to it."""
    with subprocess.Popen(
        [sys.executable, "-c", RUNNING, str(tmp_path)],
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        trace = load.open(tmp_path)
        assert trace.spans.collect()["status"].to_list() == ["open"]
        assert len(list(tmp_path.glob("*.segments"))) == 1
        child.communicate("")
    assert child.returncode == 0
    assert load.open(tmp_path).workers["complete"].to_list() == [True]


def test_folder_that_only_looks_like_segments(tmp_path: Path) -> None:
    """A segments folder without a side file costs one process."""
    write_run(tmp_path)
    (tmp_path / "worker-00009-9.segments").mkdir()
    trace = load.open(tmp_path)
    (note,) = trace.notes
    assert "'worker-00009-9.segments' was left out" in note.sentence
    assert trace.workers["rank"].to_list() == [0, 1, 2]


def test_nothing_but_broken_segments(tmp_path: Path) -> None:
    """If all processes are broken, one sentence covers them."""
    (tmp_path / "worker-00009-9.segments").mkdir()
    with pytest.raises(NotATrace, match="None of the 1 recordings"):
        load.open(tmp_path)


def left_segments(folder: Path) -> Path:
    """Write the segments of a killed process of this host next to two finished ranks."""
    write_run(folder)
    dead = replace(
        PROCESS, host=host_name(), clock_domain=clock_domain(), pid=2**22 + 1, incarnation=1
    )
    place = write_folder(folder, [Slot(1, 2), Slot(3, 4)], process=dead, end=False)
    mark(place, folder)
    return place


def test_converted_by_another_reader_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who finds the segments gone reads the file that they have become."""
    segments_folder = left_segments(tmp_path)
    decode = segments.decode

    def late(folder: Path) -> tuple[pa.Table, SideTables]:
        segments.convert(folder)
        return decode(folder)

    monkeypatch.setattr(segments, "decode", late)
    trace = load.open(tmp_path)
    assert not segments_folder.exists()
    assert not [note for note in trace.notes if note.kind == "unreadable"]
    assert trace.processes.filter(rank=PROCESS.rank)["events"].to_list() == [2]


def test_read_while_segments_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At no moment of it is the recording taken for an empty one."""
    segments_folder = left_segments(tmp_path)
    unlink = Path.unlink
    row_counts: list[int] = []

    def watched(path: Path, *, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=missing_ok)
        with contextlib.suppress(TraceNotFound):
            row_counts.append(segments.decode(segments_folder)[0].num_rows)

    monkeypatch.setattr(Path, "unlink", watched)
    segments.convert(segments_folder)
    assert {*row_counts} <= {2}
    assert not segments_folder.exists()
