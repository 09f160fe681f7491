"""Damaged samples of stacks cost those samples, are said so, and never take the program down."""

from __future__ import annotations

import subprocess
import sys
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from support.launch.patience import PATIENCE_S
from support.runs.damage import VICTIM, assert_same, write_run

from tracelens import load
from tracelens.schema.arrow import SAMPLE_SCHEMA
from tracelens.schema.vocabulary import SAMPLES_FOLDER

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.trace import Note, Trace

ROWS = 40
SEEDS = 60
READ_ALL = """
import pathlib, shutil, sys
from tracelens import load
victim = pathlib.Path(sys.argv[1]) / "samples" / sys.argv[2]
for damaged in sorted(pathlib.Path(sys.argv[3]).iterdir()):
    shutil.copyfile(damaged, victim)
    load.open(sys.argv[1]).samples.explode("frames").select("frames", "thread_name").to_dicts()
"""


def row(number: int) -> dict[str, Any]:
    start = number * 1000
    return {
        "pid": 1001,
        "thread": 1,
        "thread_name": "MainThread",
        "start_ns": start,
        "end_ns": start + 900,
        "frames": ["<module> (train.py:9)", "step (train.py:4)"],
    }


def sampled(folder: Path, **changes: Any) -> Path:
    """Write a trace with samples of the victim, whose first row is changed; return their file."""
    write_run(folder)
    rows = [row(number) for number in range(ROWS)]
    rows[0] |= changes
    file = folder / SAMPLES_FOLDER / VICTIM
    file.parent.mkdir()
    batch = pa.RecordBatch.from_pylist(
        rows, pa.schema([f.with_nullable(True) for f in SAMPLE_SCHEMA])
    )
    batch = pa.RecordBatch.from_arrays(batch.columns, schema=SAMPLE_SCHEMA)
    with pa.ipc.new_stream(str(file), SAMPLE_SCHEMA) as stream:
        stream.write_batch(batch)
    return file


def notes_on_samples(trace: Trace) -> list[Note]:
    return [note for note in trace.notes if SAMPLES_FOLDER in note.sentence]


@pytest.mark.slow
def test_damaged_bytes_do_not_take_the_program_down(tmp_path: Path) -> None:
    """Offsets and lengths that point anywhere are found before anything follows them."""
    file = sampled(tmp_path / "trace")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for seed in range(SEEDS):
        content, draw = bytearray(file.read_bytes()), Random(seed)
        for _ in range(20):
            content[draw.randrange(len(content) // 4, len(content))] = draw.choice([0, 127, 255])
        (damaged / f"{seed:02}").write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, str(tmp_path / "trace"), VICTIM, str(damaged)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_samples_that_contradict_themselves_are_left_out(tmp_path: Path) -> None:
    """The sentence names the file; everything else is as without samples."""
    file = sampled(tmp_path)
    sound_trace = load.open(tmp_path)
    assert sound_trace.samples.height == ROWS
    content = file.read_bytes()
    text = content.index(b"MainThread")
    # Offsets of the names lie before them, as 4-byte numbers: 0, 10, 20, ...
    offsets = content.rindex((10).to_bytes(4, "little") + (20).to_bytes(4, "little"), 0, text)
    file.write_bytes(content[:offsets] + b"\xff\xff\xff\x7f" + content[offsets + 4 :])
    trace = load.open(tmp_path)
    (note,) = notes_on_samples(trace)
    assert f"'{SAMPLES_FOLDER}/{VICTIM}' is damaged" in note.sentence
    assert trace.samples.is_empty()
    assert_same(trace, sound_trace)


@pytest.mark.parametrize(
    "changes",
    [
        {"start_ns": -1},
        {"start_ns": None},
        {"end_ns": 2**63 - 1},
        {"end_ns": -(2**63)},
        {"frames": None},
        {"frames": ["outer", None]},
        {"pid": None},
    ],
)
def test_single_samples_without_sense(changes: dict[str, Any], tmp_path: Path) -> None:
    """They are dropped and counted; the others stay."""
    sampled(tmp_path, **changes)
    trace = load.open(tmp_path)
    (note,) = notes_on_samples(trace)
    assert note.kind == "dropped"
    assert "lost samples of stacks: 1 for unusable values" in note.sentence
    assert trace.samples.height == ROWS - 1
