"""Whether a long recording stays small and quiet: files, bytes, memory and processor time as it goes on.

A process records steps at a steady rate, many times that of a busy training (2,000 spans a second), so
that minutes turn over as many segments as hours would. This process looks on from outside, every few
seconds: what lies in the folder, what memory the rank has of its own (not pages of segments, which are
the kernel's to write and drop), what it and its converter have spent. In the end every span must be
there, once.

Run: PYTHONPATH=.:instrument:tests python tests/benchmarks/soak.py [--help]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from support.launch.converters import converters_of
from support.launch.recording import clean_environment

from tracelens.schema.record import RECORD_BYTES
from tracelens_instrument.storage.segments import SEGMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

BUSY = 2_000  # spans a second
DAY_S = 86_400
SPANS = 400  # a step
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
MIB = 1 << 20
TIME_LIMIT_S = 600
HEADS = ("second", "files", "MiB", "rank MiB", "rank CPU s", "converter CPU s")

TRAINING = """
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


class Look(NamedTuple):
    """What is seen from outside at one moment; CPU in seconds, memory in bytes."""

    second: float
    files: int
    bytes: int
    memory: int
    rank_s: float
    converter_s: float


def main() -> None:
    """Record, look on, and check."""
    asked = arguments()
    with tempfile.TemporaryDirectory(dir=asked.dir) as name:
        trace = Path(name) / "trace"
        words = [trace, asked.rate, asked.seconds, asked.keep, SPANS]
        command = [sys.executable, "-c", TRAINING, *map(str, words)]
        environment = clean_environment()
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True
        ) as training:
            looks = list(look_on(training, trace, asked.every))
            said, _ = training.communicate(timeout=TIME_LIMIT_S)
        steps, end_s = said.split()
        wait_for_the_rest(trace)
        told(looks, int(steps), float(end_s), trace)
        lost = missing(trace, int(steps)) if asked.keep == "all" else 0
    say(f"spans lost: {lost}")
    sys.exit(lost != 0)


def look_on(training: subprocess.Popen[str], trace: Path, every_s: float) -> Iterator[Look]:
    """Look while it trains, and print what is seen."""
    say("".join(f"{name:>17}" for name in HEADS))
    begun = time.monotonic()
    spent: dict[int, float] = {}
    while training.poll() is None:
        time.sleep(every_s)
        for folder in trace.glob("*.segments"):
            try:
                spent |= {pid: cpu_of(pid) for pid in converters_of(folder)}
                look = Look(
                    time.monotonic() - begun,
                    *size_of(folder),
                    own_memory_of(training.pid),
                    cpu_of(training.pid),
                    sum(spent.values()),
                )
            except (OSError, IndexError):  # one of them has just ended
                continue
            say(
                f"{look.second:17.0f}{look.files:17}{look.bytes / MIB:17.1f}{look.memory / MIB:17.1f}"
                f"{look.rank_s:17.2f}{look.converter_s:17.2f}"
            )
            yield look


def size_of(folder: Path) -> tuple[int, int]:
    """Count the files of a folder, and their bytes."""
    sizes = [path.stat().st_size for path in folder.iterdir() if path.exists()]
    return len(sizes), sum(sizes)


def own_memory_of(pid: int) -> int:
    """Return how many bytes of memory a process has for itself alone."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def cpu_of(pid: int) -> float:
    """Return the seconds of processor time that a process has spent."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def wait_for_the_rest(trace: Path) -> None:
    """Wait for a converter that goes on after the training has ended."""
    end = time.monotonic() + TIME_LIMIT_S
    while list(trace.glob("*.segments")) and time.monotonic() < end:
        time.sleep(0.1)


def told(looks: list[Look], steps: int, end_s: float, trace: Path) -> None:
    """Sum it up, and say what a day of a busy training makes of it."""
    spans = steps * (SPANS + 1)
    first, last, later = looks[len(looks) // 4], looks[-1], looks[len(looks) // 2 :]
    (file,) = trace.glob("*.arrow")
    size = file.stat().st_size
    segments, hours = spans * RECORD_BYTES / SEGMENT_BYTES, spans / BUSY / 3600
    day = DAY_S * BUSY
    say(f"{spans:,} spans, {segments:,.0f} segments, as {hours:.1f} h at {BUSY:,} a second make")
    say(f"files: at most {max_files(looks)}, in the second half {max_files(later)}, in the end 1")
    say(f"file: {size / MIB:,.1f} MiB, {size / spans:.1f} bytes a span")
    say(f"memory of the rank: {(last.memory - first.memory) / MIB:+.1f} MiB in three quarters")
    say(f"CPU of the rank: {last.rank_s / spans * 1e6:.2f} s a million spans, its loop included")
    say(f"CPU of the converter: {last.converter_s / spans * 1e6:.2f} s a million spans")
    say(f"end of the recording: {end_s:.1f} s")
    say(
        f"a day at {BUSY:,} a second: {day / 1e6:.0f} million spans, {day * size / spans / 1e9:.1f} GB"
    )
    say(f"converter then: {last.converter_s / spans * BUSY:.3%} of a core")


def max_files(looks: list[Look]) -> int:
    return max(look.files for look in looks)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def missing(trace: Path, steps: int) -> int:
    """Count spans that are not there exactly once."""
    (file,) = trace.glob("*.arrow")
    seen = np.zeros(steps * SPANS, np.int64)
    with pa.ipc.open_file(str(file)) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            chosen = pc.drop_null(batch.column("bytes")).to_numpy(zero_copy_only=False)
            seen += np.bincount(chosen.astype(np.int64), minlength=len(seen))
    return int((seen != 1).sum())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--rate", type=int, default=100_000, help="spans a second")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two looks")
    parser.add_argument("--keep", default="all", help="as for tracelens record")
    parser.add_argument("--dir", help="where to record (default: the folder for temporary files)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
