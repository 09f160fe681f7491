"""What the dashboard costs on large runs: building the index, its size, and answers to zooms and drags.

A run of 512 ranks is written with the real schema, as recorders would have. Up to `WHOLE` spans, its
index is made as by `tracelens index`, in a process of its own: reading, explaining, indexing. Beyond,
where explaining would need more memory than most machines have, each rank is read and cut into phases on
its own, and all ranks' pieces go into the index: what indexing needs is told apart.

A fresh process then opens the index and answers random windows of many widths, through the application's
own callback: the time includes drawing, packing and JSON, all that a server does but the socket. On a
busy machine the processor's time says more than the clock's.

Run: python tests/benchmarks/dashboard.py [SPANS] [--ranks N] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from support.large_runs import LargeRun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.asking import Answer

WHOLE = 20_000_000
SHARES = (1.0, 0.5, 0.3, 0.1, 0.03, 0.01, 0.005, 0.001, 0.0003, 0.0001)
LOOKS = 40


def main() -> int:
    """Make, index and ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spans", nargs="?", type=lambda text: int(float(text)), default=10_000_000)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument(
        "--keep", type=Path, help="folder for the run, which stays and serves again"
    )
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    run = LargeRun.of(given.spans, given.ranks)
    if given.part:
        PARTS[given.part](run, given.keep)
        return 0
    say(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
    say(f"{run.ranks} ranks x {run.steps} steps = {run.spans / 1e6:.1f} M spans")
    place = nullcontext(given.keep) if given.keep else tempfile.TemporaryDirectory()
    with place as folder:
        trace = Path(folder) / f"{run.ranks}x{run.steps}"
        written = make(run, trace)
        measured("index", given, trace)
        sizes(trace, written)
        measured("ask", given, trace)
    return 0


def make(run: LargeRun, trace: Path) -> int:
    """Write the trace, unless it is there; return its bytes."""
    if not trace.exists():
        trace.mkdir(parents=True)
        started = time.perf_counter()
        for rank in range(run.ranks):
            run.write(rank, trace)
        say(f"  trace written in {time.perf_counter() - started:.0f} s")
    return sum(file.stat().st_size for file in trace.glob("*.arrow"))


def measured(part: str, given: argparse.Namespace, trace: Path) -> None:
    """Do a part in a process of its own, and tell the most memory it had."""
    command = [sys.executable, __file__, str(given.spans), "--ranks", str(given.ranks)]
    subprocess.run([*command, "--keep", str(trace), "--part", part], check=True)


def make_index(run: LargeRun, trace: Path) -> None:
    """Make the index, if there is none, and tell what that takes."""
    from tracelens.lod import index  # noqa: PLC0415 - only this process needs it

    if index.find(trace):
        say("  index is there")
        return
    made = index_whole if run.spans <= WHOLE else index_by_rank
    for name, (wall, cpu) in made(run, trace).items():
        say(
            f"  {name:28} {wall:6.1f} s, processor {cpu:6.1f} s = {cpu / run.spans * 1e8:6.1f} for 10^8"
        )
    say(
        f"  most memory                  {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB"
    )


def index_whole(_run: LargeRun, trace: Path) -> dict[str, tuple[float, float]]:
    """Do what `tracelens index` does."""
    from tracelens import load  # noqa: PLC0415
    from tracelens.analyses import analyze  # noqa: PLC0415
    from tracelens.lod import index  # noqa: PLC0415
    from tracelens.lod.run import outlined  # noqa: PLC0415

    clock = Clock()
    opened = clock.took("reading", load.open(trace))
    report = clock.took("explaining", analyze(opened))
    folder = index.write(trace, *outlined(opened, report))
    assert folder
    clock.took("indexing, coarse levels", folder)
    index.refine(folder)
    clock.took("indexing, finer levels", folder)
    return clock.seconds


def index_by_rank(run: LargeRun, trace: Path) -> dict[str, tuple[float, float]]:
    """Read and cut one rank at a time."""
    from support.large_index import outlined_by_rank  # noqa: PLC0415

    from tracelens.lod import index  # noqa: PLC0415

    clock = Clock()
    outline, parts = clock.took("reading and cutting", outlined_by_rank(run, trace))
    folder = index.write(trace, outline, waited(parts, clock, "making lanes again"))
    assert folder
    clock.took("indexing, coarse levels", folder)
    index.refine(folder)
    clock.took("indexing, finer levels", folder)
    return clock.seconds


class Clock:
    """Seconds of wall and processor since the last look, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, tuple[float, float]] = {}
        self._last = time.perf_counter(), time.process_time()

    def took(self, name: str, made: Any) -> Any:
        """Book the time since the last look."""
        now = time.perf_counter(), time.process_time()
        wall, cpu = self.seconds.get(name, (0.0, 0.0))
        self.seconds[name] = wall + now[0] - self._last[0], cpu + now[1] - self._last[1]
        self._last = now
        return made


def waited(parts: Iterator[Any], clock: Clock, name: str) -> Iterator[Any]:
    """Pass parts on, and book the time that making them takes."""
    for part in parts:
        clock.took(name, part)
        yield part
        clock.took("indexing, coarse levels", part)


def sizes(trace: Path, written: int) -> None:
    """Tell how large all is."""
    from tracelens.lod import index  # noqa: PLC0415

    folder = index.find(trace)
    assert folder
    found = index.size(folder)
    say(f"  trace                        {written / 1e6:8.1f} MB")
    for name, size in found.items():
        say(f"  index: {name:21} {size / 1e6:8.1f} MB = {size / written:6.1%} of the trace")


def ask(_run: LargeRun, trace: Path) -> None:
    """Open the index and answer zooms and drags."""
    started = time.perf_counter()
    from support.asking import asker  # noqa: PLC0415 - what it imports counts

    answer, width = asker(trace)
    say(f"  opened in {time.perf_counter() - started:.2f} s, {memory()}")
    rng, every = np.random.default_rng(0), []
    for share in SHARES:
        length = int(width * share)
        begins = rng.integers(0, max(1, width - length), LOOKS).tolist()
        for begin in begins:  # once to bring in what is on the disk
            answer(begin, begin + length)
        looks = [answer(begin, begin + length) for begin in begins]
        every += looks
        say(f"  {share:8.2%} of the run: {told(looks)}   {looks[0].level}")
    say(f"  all windows:         {told(every)}")
    say(f"  {memory()} afterwards")


def told(looks: list[Answer]) -> str:
    """Tell medians and 95 % quantiles."""
    wall, cpu = ([getattr(look, name) for look in looks] for name in ("ms", "cpu_ms"))
    return (
        f"p50 {np.median(wall):5.1f}, p95 {np.quantile(wall, 0.95):5.1f} ms "
        f"(processor {np.median(cpu):5.1f}, {np.quantile(cpu, 0.95):5.1f} ms), "
        f"at most {max(look.sent for look in looks) / 1e3:3.0f} kB"
    )


def memory() -> str:
    """Say how much memory this process has: its own, and mapped files that the system may take back."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kib = {line.split()[0]: int(line.split()[1]) for line in lines if line.startswith("Rss")}
    return f"memory {kib['RssAnon:'] >> 10} MiB + {kib['RssFile:'] >> 10} MiB mapped"


def say(line: str) -> None:
    """Print at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


PARTS = {"index": make_index, "ask": ask}

if __name__ == "__main__":
    sys.exit(main())
