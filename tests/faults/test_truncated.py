"""A file that was cut off gives all its complete batches, and the others give everything."""

from __future__ import annotations

import struct
from random import Random
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal
from support.runs.damage import VICTIM, assert_left_out, open_held, own_time, rewritten, write_run
from support.tiers import mark_slow

from tracelens import load
from tracelens.readers.native.validation import list_problems
from tracelens.verdicts.report import analyze
from tracelens_dashboard.runs.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.trace import Trace

BATCH = 50


def in_small_batches(path: Path) -> int:
    """Rewrite a file in many batches; return its size."""
    with pa.ipc.open_file(str(path)) as reader:
        table = reader.read_all()
    with pa.ipc.new_file(str(path), table.schema) as out:
        out.write_table(table, max_chunksize=BATCH)
    return path.stat().st_size


@pytest.mark.parametrize("kept", [0.5, 0.7, 0.85])
def test_batches_before_the_cut_are_read(kept: float, tmp_path: Path) -> None:
    """Whole batches before the cut are read, which is said; other ranks lose nothing."""
    victim = write_run(tmp_path)
    size = in_small_batches(victim)
    sound_trace = open_held(tmp_path)
    victim.write_bytes(victim.read_bytes()[: int(kept * size)])
    trace = load.open(tmp_path)
    (note,) = trace.notes
    rank = trace.events.filter(pl.col("rank") == 1).collect()
    assert note.kind == "truncated"
    assert rank.height % BATCH == 0
    assert 0 < rank.height < sound_trace.events.filter(pl.col("rank") == 1).collect().height
    assert note.sentence == (
        f"'{VICTIM}' is damaged or cut off: its first {rank.height} events are used."
    )
    others = pl.col("rank") != 1
    assert_frame_equal(
        trace.events.filter(others).collect(), sound_trace.events.filter(others).collect()
    )
    for other in (0, 2):
        assert_frame_equal(own_time(trace, other), own_time(sound_trace, other))
    assert not trace.processes.filter(pl.col("rank") == 1)["complete"].item()


def test_truncated_rank_is_no_hang(tmp_path: Path) -> None:
    """The others' waits after the cut are measured among themselves, not unknown."""
    victim = write_run(tmp_path)
    size = in_small_batches(victim)
    victim.write_bytes(victim.read_bytes()[: size // 2])
    arrivals = load.open(tmp_path).arrivals
    partial = arrivals.filter(pl.col("arrived") < pl.col("expected"))
    assert partial.height > 0
    assert partial["last_arrival_ns"].null_count() == 0


def test_only_the_footer_is_missing(tmp_path: Path) -> None:
    """Without its last bytes a file still gives every event."""
    victim = write_run(tmp_path)
    sound_trace = open_held(tmp_path)
    victim.write_bytes(victim.read_bytes()[:-1])
    trace = load.open(tmp_path)
    assert_frame_equal(trace.events.collect(), sound_trace.events.collect())
    assert [note.kind for note in trace.notes] == ["truncated"]


@pytest.mark.parametrize("kept", [9, 100, 700])
def test_cut_inside_the_header(kept: int, tmp_path: Path) -> None:
    """Without a whole header nobody knows whose events these are."""
    victim = write_run(tmp_path)
    victim.write_bytes(victim.read_bytes()[:kept])
    assert_left_out(tmp_path, "header is damaged or cut off")


@pytest.mark.parametrize("seed", mark_slow(range(40), range(8)))
def test_random_damage_never_stops_the_reader(seed: int, tmp_path: Path) -> None:
    """Random damage never stops the reading and never changes what other files hold."""
    victim = write_run(tmp_path)
    sound_trace = open_held(tmp_path)
    content, draw = bytearray(victim.read_bytes()), Random(seed)
    for _ in range(8):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    victim.write_bytes(bytes(content))
    trace = load.open(tmp_path)
    for file in ("worker-00000-1000.arrow", "worker-00002-1002.arrow"):
        assert_frame_equal(events_of(trace, file), events_of(sound_trace, file))


def events_of(trace: Trace, file: str) -> pl.DataFrame:
    process = trace.processes.filter(pl.col("file") == file)["process"].item()
    return trace.events.filter(pl.col("process") == process).drop("process").collect()


@pytest.mark.parametrize("seed", range(6))
def test_events_before_a_damaged_footer_are_read(seed: int, tmp_path: Path) -> None:
    """Every event before it is used, the damage is told, and checking the trace says it, too."""
    victim = write_run(tmp_path)
    sound_trace = open_held(tmp_path)
    content, draw = bytearray(victim.read_bytes()), Random(seed)
    (size,) = struct.unpack("<i", content[-10:-6])
    for _ in range(40):
        content[-10 - draw.randrange(1, size)] ^= 1 << draw.randrange(8)
    victim.write_bytes(content)
    trace = load.open(tmp_path)
    assert_frame_equal(trace.events.collect(), sound_trace.events.collect())
    (note,) = trace.notes
    assert note.kind == "truncated"
    assert any(note.sentence in problem for problem in list_problems(trace))


def test_rows_out_of_order_are_told(tmp_path: Path) -> None:
    """Checking finds them in the file, though reading sorts them."""
    victim = write_run(tmp_path)
    rewritten(victim, lambda table: table.take(list(range(table.num_rows))[::-1]))
    assert f"'{VICTIM}': rows are not sorted by start_ns." in list_problems(load.open(tmp_path))


def test_every_file_cut_to_nothing_can_be_drawn(tmp_path: Path) -> None:
    """A run without one step has pages without anything on them."""
    write_run(tmp_path)
    for file in tmp_path.iterdir():
        rewritten(file, lambda table: table.slice(1, 1))
    trace = load.open(tmp_path).with_(steps=load.open(tmp_path).steps.clear())
    assert Store.from_trace(trace, analyze(trace)).measure_step_times(()) is not None
