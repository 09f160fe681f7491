"""Every closed span is kept exactly once after a kill of any process at any time."""

from __future__ import annotations

import mmap
import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.launch.converters import converters_of, kill
from support.launch.patience import wait_until
from support.launch.recording import clean_environment, read_one
from support.turns import select_turn

from tracelens.conversion.segments import convert

ROUNDS = int(os.environ.get("TRACELENS_PROOF_KILLS", "3"))  # `make proofs`: 100
PROGRESS = struct.Struct("@q")

LOOP = """
import mmap, sys, time
import tracelens as tl
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 8)
said = memoryview(memory).cast("q")
tl.start(sys.argv[2])
outer, long, piece = tl.span("outer"), tl.span("long"), tl.span("piece")
closed = step = 0
with outer:
    while True:
        with tl.step(step):
            if step % 150 == 0:
                if step:
                    token.end()
                token = long.begin(nbytes=step // 150)
            for _ in range(400):
                with piece(nbytes=closed):
                    pass
                closed += 1
                said[0] = closed
        step += 1
        time.sleep(0.0005)
"""


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("victims", "rounds"),
    [
        ("both", 1),
        *(
            pytest.param(victims, ROUNDS, marks=pytest.mark.slow)
            for victims in select_turn(("training", "converter", "both"))
        ),
    ],
)
def test_every_closed_span_exactly_once(tmp_path: Path, victims: str, rounds: int) -> None:
    """A killed training's trace is made whole by its converter; if that is killed, too, by a reader."""
    for turn in range(rounds):
        trace = tmp_path / f"trace-{turn}"
        closed, folder, converters = run(trace, tmp_path / "progress", victims)
        if victims == "training":
            wait_until(lambda folder=folder: not folder.exists())  # type: ignore[misc]  # bound for this turn
        wait_until(lambda pids=converters: not any(map(is_there, pids)))  # type: ignore[misc]  # as above
        check(trace, folder, closed)


def run(trace: Path, progress: Path, victims: str) -> tuple[int, Path, list[int]]:
    """Start a training, kill whom we may at a random moment, and the training in the end."""
    progress.write_bytes(bytes(8))
    with progress.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 8)
    command = [sys.executable, "-c", LOOP, str(progress), str(trace)]
    child = subprocess.Popen(command, env=clean_environment())
    converter_pids: list[int] = []
    try:
        wait_until(lambda: PROGRESS.unpack_from(memory)[0] > 140_000)
        (folder,) = trace.glob("*.segments")
        wait_until(lambda: bool(converters_of(folder)))
        for _ in range(3 if victims == "converter" else 1):
            time.sleep(random.uniform(0, 0.5))
            converter_pids += converters_of(folder)
            if victims != "training":
                kill(*converter_pids)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
    converter_pids += converters_of(folder)
    if victims == "both":
        kill(*converter_pids)
    return PROGRESS.unpack_from(memory)[0], folder, converter_pids


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def check(trace: Path, folder: Path, closed: int) -> None:
    if folder.exists():
        convert(folder)
    assert [path.suffix for path in trace.iterdir()] == [".arrow"]
    recorded = read_one(trace)
    frame = recorded.frame
    pieces = frame.filter(name="piece", status="closed")["bytes"].sort().to_list()
    assert pieces == list(range(len(pieces)))
    assert closed <= len(pieces) <= closed + 1
    long = frame.filter(name="long").sort("bytes")
    assert long["bytes"].to_list() == list(range(long.height))
    assert long["status"].to_list() == ["closed"] * (long.height - 1) + ["open"]
    assert frame.filter(name="outer")["status"].to_list() == ["open"]
    assert (recorded.side.complete, recorded.side.dropped) == (False, {})
