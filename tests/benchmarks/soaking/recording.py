"""Processes that record at a steady rate, all of it or the last steps, and what became of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from support.launch.recording import clean_environment

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SPANS", "missing", "recording", "wait_for_the_rest"]

SPANS: Final = 400  # a step
TIME_LIMIT_S: Final = 600

TRAINING: Final = """
import sys, time
import tracelens as tl
folder, rate, seconds, keep = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
tl.start(folder, keep=keep)
piece, begun, step, spans = tl.span("piece", kind="forward"), time.monotonic(), 0, int(sys.argv[5])
while (passed := time.monotonic() - begun) < seconds:
    with tl.step(step):
        for number in range(spans):
            with piece(nbytes=step * spans + number):
                pass
    step += 1
    time.sleep(max(0.0, (step * (spans + 1)) / rate - passed))
print(step, flush=True)
begun = time.monotonic()
tl.stop()
print(time.monotonic() - begun, flush=True)
"""


def recording(
    trace: Path, rate: int, seconds: float, keep: str, place: tuple[int, int] = (0, 1)
) -> subprocess.Popen[str]:
    """Start a process that records `rate` spans a second; `place` is its rank, and of how many.

    At its end it prints how many steps it did, and how many seconds it took to end the recording.
    """
    script_arguments = [trace, rate, seconds, keep, SPANS]
    environment = clean_environment() | {"RANK": str(place[0]), "WORLD_SIZE": str(place[1])}
    return subprocess.Popen(
        [sys.executable, "-c", TRAINING, *map(str, script_arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_for_the_rest(trace: Path) -> None:
    """Wait for a converter that goes on after the training has ended."""
    end = time.monotonic() + TIME_LIMIT_S
    while list(trace.glob("*.segments")) and time.monotonic() < end:
        time.sleep(0.1)


def missing(file: Path, steps: int, last: int | None = None) -> int:
    """Count spans that are not there exactly once: of all steps, or of the `last` ones."""
    span_counts = np.zeros(steps * SPANS, np.int64)
    with pa.ipc.open_file(os.fspath(file)) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            chosen = pc.drop_null(batch.column("bytes")).to_numpy(zero_copy_only=False)
            span_counts += np.bincount(chosen.astype(np.int64), minlength=len(span_counts))
    kept = span_counts[-last * SPANS :] if last else span_counts
    return int((kept != 1).sum() + (span_counts > 1).sum())
