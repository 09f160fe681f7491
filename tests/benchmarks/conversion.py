"""What it costs to turn live segments into Arrow: CPU time, bytes on disk, memory, by length.

A real DistributedDataParallel training is recorded on two ranks (instrument/examples/ddp_cnn.py), and
its segments are converted, once as they are and once repeated to a recording as long as a day's. Each
has a process of its own, which converts twice: the second time counts, and what the first took beyond it
is told beside, because it is what numpy, pyarrow and zstd take at their first use, however few events
there are. Of several rounds the quickest counts, since others use the machine too. The yardstick,
measured likewise, is the least that could be done by hand: the fields of all records as they are,
without what they stand for, in one table, written with the same compression.

Run: make bench NAME=conversion [PUBLISH=1] [ARGS="--steps N --times N --rounds N"]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from benchmarks.published import publish, table
from benchmarks.quick import parse_quick
from support.launch.recording import clean_environment
from support.launch.torchrun import torchrun_command

from tracelens.conversion.columns import SLOT
from tracelens.conversion.segments import convert
from tracelens.schema.arrow import BATCH_ROWS, WRITE_OPTIONS
from tracelens.schema.record import RECORD_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE = Path(__file__).parents[2] / "instrument" / "examples" / "ddp_cnn.py"
SCRIPT = "tests/benchmarks/conversion.py"
PAGE = "benchmarks.md"
TIME_LIMIT = 1800
RANKS = 2
MOST_CPU_S, MOST_BYTES = 0.4, 20.0  # a million events, an event

# Ends when the training has, and leaves the segments behind, as a kill would.
TRAIN = """
import os, runpy, sys
import tracelens as tl
tl.stop = lambda: os._exit(0)
script = sys.argv.pop(1)
sys.path.insert(0, os.path.dirname(script))
runpy.run_path(script, run_name="__main__")
"""


def record(folder: Path, steps: int) -> list[Path]:
    """Train, and return the segments of all ranks."""
    script = folder / "train.py"
    script.write_text(TRAIN)
    command = torchrun_command(script, RANKS, [EXAMPLE, "--steps", steps])
    where = str(folder / "trace")
    environment = clean_environment(
        OMP_NUM_THREADS="1", TRACELENS_DIR=where, TRACELENS_CONVERTER="0"
    )
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=TIME_LIMIT)
    return sorted((folder / "trace").glob("worker-*.segments"))


def repeated(source: Path, folder: Path, times: int) -> Path:
    """Copy a recording several times, one after the other."""
    copy = folder / source.name
    copy.mkdir(parents=True)
    shutil.copy(source / "side.jsonl", copy)
    parts = [np.fromfile(path, np.int64).reshape(-1, 8) for path in segments(source)]
    length = max(int(np.abs(part[1:, :2]).max()) for part in parts) - int(parts[0][1, 0]) + 1
    for number, (turn, part) in enumerate((turn, part) for turn in range(times) for part in parts):
        shifted = part.copy()
        for column in (0, 1):  # start and end
            used = shifted[1:, column] != 0
            shifted[1:, column][used] += np.sign(shifted[1:, column][used]) * turn * length
        shifted.tofile(copy / f"{number:06d}.seg")
    return copy


def segments(folder: Path) -> Iterator[Path]:
    """List segments that hold something."""
    for path in sorted(folder.glob("*.seg")):
        if np.fromfile(path, np.uint32).reshape(-1, RECORD_BYTES // 4)[1:, -1].any():  # definitions
            yield path


def by_hand(folder: Path, target: Path) -> float:
    """Return the CPU seconds that it takes to write the fields of all records, the second time."""
    _by_hand(folder, target)
    return _by_hand(folder, target)


def _by_hand(folder: Path, target: Path) -> float:
    cpu_before = time.process_time()
    parts = [np.fromfile(path, SLOT)[1:] for path in segments(folder)]
    records = np.concatenate(parts)
    fields: dict[str, Any] = {
        name: np.ascontiguousarray(records[name]) for name in SLOT.names or ()
    }
    written = pa.table(fields)
    with pa.ipc.new_file(str(target), written.schema, options=WRITE_OPTIONS) as writer:
        writer.write_table(written, max_chunksize=BATCH_ROWS)
    return time.process_time() - cpu_before


def measure(folder: Path) -> dict[str, float]:
    """Convert a recording here and now."""
    copy_folder = folder.parent / "again" / folder.name
    shutil.copytree(folder, copy_folder)
    first_s, _ = _convert_timed(folder)
    cpu_s, path = _convert_timed(copy_folder)
    with pa.ipc.open_file(str(path)) as reader:
        events = sum(reader.get_batch(n).num_rows for n in range(reader.num_record_batches))
    return {
        "events": events,
        "first": max(first_s - cpu_s, 0),
        "cpu": cpu_s,
        "bytes": path.stat().st_size,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _convert_timed(folder: Path) -> tuple[float, Path]:
    """Convert a recording; return the CPU seconds that it takes, and the Arrow file."""
    before = time.process_time()
    path = convert(folder)
    return time.process_time() - before, path


def measure_best(sources: list[Path], work: Path, times: int, rounds: int) -> dict[str, float]:
    """Convert all ranks in processes of their own, in turns with the yardstick; the least counts."""
    best_by_source: list[dict[str, float]] = []
    for source in sources:
        rows = []
        for _ in range(rounds):
            copy = repeated(source, work / "copy", times)
            rows.append(_run("--by-hand", copy) | _run("--one", copy))
            shutil.rmtree(work / "copy")
        best_by_source.append({name: min(row[name] for row in rows) for name in rows[0]})
    return {name: sum(row[name] for row in best_by_source) for name in best_by_source[0]}


def _run(what: str, copy: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, what, str(copy)], check=True, capture_output=True, env=os.environ
    )
    result: dict[str, float] = json.loads(done.stdout)
    return result


def report(arguments: argparse.Namespace) -> str:
    """Measure, and return it as Markdown."""
    head = ["recording", "events", "CPU s a million", "of by hand"]
    head += ["bytes an event", "peak MB", "first use, ms"]
    body, is_held = [], True
    with tempfile.TemporaryDirectory() as folder:
        sources = record(Path(folder), arguments.steps)
        for name, times in (("as it is", 1), (f"{arguments.times} times as long", arguments.times)):
            row = measure_best(sources, Path(folder), times, arguments.rounds)
            cpu, size = row["cpu"] / row["events"] * 1e6, row["bytes"] / row["events"]
            is_held &= cpu <= MOST_CPU_S and size <= MOST_BYTES
            values = (f"{row['events']:,.0f}", f"{cpu:.2f}", f"{row['cpu'] / row['by_hand']:.1f} x")
            extra_cells = (
                f"{size:.1f}",
                f"{row['memory'] / RANKS:.0f}",
                f"{1000 * row['first'] / RANKS:.0f}",
            )
            body.append([name, *values, *extra_cells])
    bounds = f"{MOST_CPU_S} s CPU a million events, {MOST_BYTES:.0f} bytes an event"
    said = f"Promised: at most {bounds}: {'held' if is_held else '**not is_held**'}."
    return f"{table(f'A DDP training of {RANKS} ranks', head, body)}\n\n{said}"


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5800, help="of the training: 9 events a rank")
    parser.add_argument("--times", type=int, default=20, help="how much longer the long one is")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--publish", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--one", type=Path, help="convert this one here")
    parser.add_argument("--by-hand", type=Path, help="the yardstick on this one here")
    return parser


def main() -> None:
    arguments = parse_quick(options(), steps=20, times=2, rounds=1)
    if arguments.one:
        json.dump(measure(arguments.one), sys.stdout)
    elif arguments.by_hand:
        with tempfile.TemporaryDirectory() as folder:
            spent = by_hand(arguments.by_hand, Path(folder) / "by-hand.arrow")
        json.dump({"by_hand": spent}, sys.stdout)
    else:
        text = report(arguments)
        sys.stdout.write(text + "\n")
        if arguments.publish:
            publish(PAGE, SCRIPT, text)


if __name__ == "__main__":
    main()
