"""What it costs to turn live segments into Arrow: CPU time, bytes on disk, memory, by length.

A real DistributedDataParallel training is recorded on two ranks (instrument/examples/ddp_cnn.py), and
its segments are converted, once as they are and once repeated to a recording as long as a day's. Each
conversion is a process of its own; of several rounds the quickest counts, since others use the machine
too. The yardstick, measured in the same process, is zstd (level 1) over the raw records.

Run: python tests/benchmarks/conversion.py [steps [repetitions [rounds]]]
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from support.recording import clean_environment
from support.torchrun import torchrun_command

from tracelens.schema.record import RECORD_BYTES
from tracelens.schema.segments import convert

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE = Path(__file__).parents[2] / "instrument" / "examples" / "ddp_cnn.py"
TIME_LIMIT = 1800

# Ends when the training has, and leaves the segments behind, as a kill would.
TRAIN = """
import os, runpy, sys
import tracelens as tl
tl.stop = lambda: os._exit(0)
script = sys.argv.pop(1)
sys.path.insert(0, os.path.dirname(script))
runpy.run_path(script, run_name="__main__")
"""


def record(folder: Path, steps: int) -> Path:
    """Train, and return the segments of rank 0."""
    script = folder / "train.py"
    script.write_text(TRAIN)
    command = torchrun_command(script, 2, [EXAMPLE, "--steps", steps])
    environment = clean_environment(OMP_NUM_THREADS="1", TRACELENS_DIR=str(folder / "trace"))
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=TIME_LIMIT)
    (found,) = (folder / "trace").glob("worker-00000-*.segments")
    return found


def repeated(source: Path, folder: Path, times: int) -> Path:
    """Copy a recording several times, one after the other."""
    copy = folder / source.name
    copy.mkdir(parents=True)
    shutil.copy(source / "side.jsonl", copy)
    parts = [np.fromfile(path, np.int64).reshape(-1, 8) for path in segments(source)]
    length = max(int(np.abs(part[1:, :2]).max()) for part in parts) - int(parts[0][1, 0]) + 1
    for number, (turn, part) in enumerate((turn, part) for turn in range(times) for part in parts):
        moved = part.copy()
        for column in (0, 1):  # start and end
            used = moved[1:, column] != 0
            moved[1:, column][used] += np.sign(moved[1:, column][used]) * turn * length
        moved.tofile(copy / f"{number:06d}.seg")
    return copy


def segments(folder: Path) -> Iterator[Path]:
    """List segments that hold something."""
    for path in sorted(folder.glob("*.seg")):
        if np.fromfile(path, np.uint32).reshape(-1, RECORD_BYTES // 4)[1:, -1].any():  # definitions
            yield path


def measure(folder: Path) -> dict[str, float]:
    """Convert a recording here and now."""
    raw = b"".join(path.read_bytes() for path in list(segments(folder))[:64])
    before = time.process_time()
    pa.Codec("zstd", 1).compress(raw)
    yardstick = (time.process_time() - before) * RECORD_BYTES / len(raw)
    del raw
    before = time.process_time()
    path = convert(folder)
    spent = time.process_time() - before
    with pa.ipc.open_file(str(path)) as reader:
        events = sum(reader.get_batch(n).num_rows for n in range(reader.num_record_batches))
    return {
        "events": events,
        "cpu": spent / events * 1e6,
        "yardstick": yardstick * 1e6,
        "bytes": path.stat().st_size / events,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def best(source: Path, work: Path, times: int, rounds: int) -> dict[str, float]:
    """Convert in processes of their own; the least CPU time counts."""
    found = []
    for _ in range(rounds):
        copy = repeated(source, work / "copy", times)
        command = [sys.executable, __file__, "--one", str(copy)]
        done = subprocess.run(command, check=True, capture_output=True, env=os.environ)
        found.append(json.loads(done.stdout))
        shutil.rmtree(work / "copy")
    return {name: min(row[name] for row in found) for name in found[0]}


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--one"]:
        json.dump(measure(Path(arguments[1])), sys.stdout)
        return
    defaults = (5000, 20, 5)
    steps, times, rounds = (*map(int, arguments), *defaults[len(arguments) :])
    with tempfile.TemporaryDirectory() as folder:
        source = record(Path(folder), steps)
        head = ("events", "CPU s a million", "of zstd alone", "bytes an event", "peak memory, MB")
        sys.stdout.write("".join(f"{name:>18}" for name in head) + "\n")
        for many in (1, times):
            row = best(source, Path(folder), many, rounds)
            values = (
                f"{row['events']:,.0f}",
                f"{row['cpu']:.2f}",
                f"{row['cpu'] / row['yardstick']:.1f} x",
                f"{row['bytes']:.1f}",
                f"{row['memory']:.0f}",
            )
            sys.stdout.write("".join(f"{value:>18}" for value in values) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
