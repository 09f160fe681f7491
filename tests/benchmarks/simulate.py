"""What simulating the largest published run takes: 512 workers, 64 servers, 20 steps of ResNet-50.

Run: make bench NAME=simulate [ARGS="--steps 2"]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from benchmarks.quick import parse_quick


def main() -> None:
    """Simulate in a process of its own, count, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--workers", type=int, default=512)
    given = parse_quick(parser, steps=1, workers=8)
    sizes = ("--set", f"run.steps={given.steps}", "--set", f"run.workers={given.workers}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        command = [sys.executable, "-m", "tracelens", "simulate", "resnet50"]
        subprocess.run([*command, *sizes, "--out", str(folder)], check=True)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        files = sorted(folder.glob("*.arrow"))
        events = sum(_rows(file) for file in files)
        size = sum(file.stat().st_size for file in files)
    seconds = used.ru_utime + used.ru_stime
    sys.stdout.write(
        f"{events:,} events of {len(files)} processes, {size / 1e6:.0f} MB: {seconds:.1f} CPU s, "
        f"{seconds / events * 1e6:.2f} per 10^6 events, {used.ru_maxrss / 1e6:.2f} GB of memory\n"
    )


def _rows(file: Path) -> int:
    with pa.OSFile(str(file), "rb") as opened:
        reader = pa.ipc.open_file(opened)
        return sum(reader.get_batch(k).num_rows for k in range(reader.num_record_batches))


if __name__ == "__main__":
    main()
