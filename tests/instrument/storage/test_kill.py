"""A rank killed with SIGKILL loses no closed span and shows the one it was in."""

import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from support.launch.recording import clean_environment, read_one

TRIALS = int(os.environ.get("TRACELENS_PROOF_KILLS", "20"))  # `make proofs`: 100
PROGRESS = struct.Struct("@q")

# It says how many spans it has closed in shared memory, which a kill cannot lose either.
# One store a value: `struct.pack_into` would write zeros first, and a kill may come in between.
LOOP = """
import mmap, sys
import tracelens as tl
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 8)
said = memoryview(memory).cast("q")
tl.start(sys.argv[2])
OUTER, INNER, VALUED = tl.span("outer"), tl.span("inner"), tl.span("valued")
closed = 0
with OUTER:
    while True:
        with INNER:
            pass
        with VALUED(nbytes=closed):
            pass
        closed += 2
        said[0] = closed
"""


@pytest.mark.end_to_end
@pytest.mark.parametrize("trials", [5, pytest.param(TRIALS, marks=pytest.mark.slow)])
def test_no_closed_span_is_lost(tmp_path: Path, trials: int) -> None:
    """In every one of many kills at a random moment of a tight loop."""
    for trial in range(trials):
        folder = tmp_path / f"trace-{trial}"
        closed = run_and_kill(folder, tmp_path / f"progress-{trial}")
        recorded = read_one(folder)
        frame = recorded.frame
        kept = frame.filter(pl.col("status") == "closed").height
        assert kept >= closed > 0
        assert kept <= closed + 2  # finished after the child last said so
        still_open = frame.filter(pl.col("status") == "open")["name"].to_list()
        assert still_open[0] == "outer"
        assert len(still_open) <= 2
        valued = frame.filter(pl.col("name") == "valued")["bytes"].to_numpy()
        assert (valued == np.arange(0, 2 * len(valued), 2)).all()
        assert recorded.side.complete is False
        assert recorded.side.dropped == {}
        shutil.rmtree(folder)


def run_and_kill(folder: Path, progress: Path) -> int:
    progress.write_bytes(bytes(8))
    with progress.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 8)
    child = subprocess.Popen(
        [sys.executable, "-c", LOOP, str(progress), str(folder)],
        env=clean_environment(TRACELENS_CONVERTER="0"),  # where we are slow, it is a long recording
    )
    try:
        while PROGRESS.unpack_from(memory)[0] == 0:
            assert child.poll() is None
            time.sleep(0.001)
        time.sleep(random.uniform(0.0, 0.03))
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    closed: int = PROGRESS.unpack_from(memory)[0]
    return closed
