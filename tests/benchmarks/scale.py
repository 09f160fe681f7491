"""What it takes to explain a large run: wall time, CPU time and peak memory of `tracelens analyze`.

Runs of many ranks on hosts with skewed clocks are simulated, 33 events a rank and step, one rank slowed
down by a quarter of its backprop in the middle half of the steps; each is written as a recorder would
have. `tracelens info` and `tracelens analyze` then run as processes of their own, and the planted rank
has to be the first finding. A last process tells where the time goes.

Run: python tests/benchmarks/scale.py [--stages] [--keep FOLDER] [RANKSxSTEPS ...]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens.simulator.synthetic import Fault, Scenario, random_clocks, write

SIZES = ("64x1000", "512x1000", "1024x500", "4096x128")
PER_RANK_AND_STEP = 33
RANKS_PER_HOST = 8
GIB = 1 << 30


@dataclass(frozen=True)
class Size:
    """How large a run is."""

    ranks: int
    steps: int

    @classmethod
    def parse(cls, text: str) -> Size:
        """Read RANKSxSTEPS."""
        ranks, _, steps = text.partition("x")
        return cls(int(ranks), int(steps))

    @property
    def events(self) -> int:
        """Recorded events of all ranks."""
        return self.ranks * self.steps * PER_RANK_AND_STEP

    @property
    def slow_rank(self) -> int:
        """The rank that is slowed down."""
        return self.ranks * 3 // 8

    @property
    def scenario(self) -> Scenario:
        """The run to simulate."""
        middle = (self.steps // 4, 3 * self.steps // 4)
        return Scenario(
            ranks=self.ranks,
            ranks_per_host=RANKS_PER_HOST,
            steps=self.steps,
            layers=7,
            buckets=6,
            transfer_ms=0.3,
            clocks=random_clocks(self.ranks // RANKS_PER_HOST),
            faults=(Fault("backprop", (self.slow_rank,), steps=middle, factor=1.25),),
        )


@dataclass(frozen=True)
class Cost:
    """What a process took: seconds of wall and CPU time, bytes of memory at its peak."""

    wall: float
    cpu: float
    peak: int

    def __str__(self) -> str:
        return f"wall {self.wall:6.1f} s   CPU {self.cpu:6.1f} s   peak {self.peak / GIB:5.2f} GiB"


def make(size: Size, folder: Path) -> None:
    """Simulate and write a run in a process of its own, whose memory goes with it."""
    started = time.perf_counter()
    maker = multiprocessing.get_context("spawn").Process(target=write, args=(size.scenario, folder))
    maker.start()
    maker.join()
    assert maker.exitcode == 0
    written = sum(file.stat().st_size for file in folder.iterdir())
    took = time.perf_counter() - started
    say(f"  made in {took:.0f} s, {written / 1e6:.0f} MB ({written / size.events:.1f} B an event)")


def run(arguments: list[str], output: Path) -> Cost:
    """Run `tracelens` and measure it."""
    command = [sys.executable, "-m", "tracelens", *arguments]
    started = time.perf_counter()
    with output.open("wb") as file:
        child = subprocess.Popen(command, stdout=file)
        _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, f"{command} ended with {child.returncode}"
    wall = time.perf_counter() - started
    return Cost(wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def first_finding(report: dict[str, Any]) -> str:
    """Say in a word what a report finds first."""
    found = report["findings"]
    return f"{found[0]['kind']} {found[0]['ranks']} {found[0]['phase']}" if found else "nothing"


def measure(size: Size, folder: Path, *, stages: bool) -> bool:
    """Print what one size takes; say whether the planted rank was found first."""
    say(f"{size.ranks} ranks x {size.steps} steps = {size.events / 1e6:.1f} M events")
    trace, output = folder / f"{size.ranks}x{size.steps}", folder / "output.json"
    if not trace.exists():
        make(size, trace)
    info = run(["info", str(trace), "--format", "json"], output)
    say(f"  info     {info}")
    analyze = run(["analyze", str(trace), "--format", "json"], output)
    found = first_finding(json.loads(output.read_text()))
    expected = f"straggler [{size.slow_rank}] backprop"
    say(f"  analyze  {analyze}   {analyze.wall / size.events * 1e6:.2f} s a million events")
    say(f"  first    {found} ({'as planted' if found == expected else f'planted: {expected}'})")
    if stages:
        subprocess.run([sys.executable, __file__, "--stages-of", str(trace)], check=True)
    return found == expected


def tell_stages(trace: Path) -> None:
    """Open and analyze in this process, and print what each stage takes."""
    from tracelens.accounting import efficiency, phases  # noqa: PLC0415 - only this process
    from tracelens.align import DEFAULT_TRANSFORMS  # noqa: PLC0415
    from tracelens.analyses import ANALYSES  # noqa: PLC0415 - only this process
    from tracelens.readers.native.reader import NativeReader  # noqa: PLC0415 - needs them

    found = staged("read", lambda: NativeReader().read(trace))
    for transform in DEFAULT_TRANSFORMS:
        name = transform.__module__.rpartition(".")[2]
        found = staged(name, lambda step=transform, before=found: step(before))
    parts = staged("phases", lambda: phases.run(found))
    for analysis in ANALYSES:
        staged(analysis.name, lambda run=analysis.run: run(found, parts))
    staged("efficiency", lambda: efficiency.measure(found, parts))


def staged(name: str, work: Any) -> Any:
    """Do a stage and print what it took, and the most memory that the process had in it."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    wall, cpu = time.perf_counter(), time.process_time()
    made = work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    say(f"    {name:13} {Cost(wall, cpu, peak * 1024)}")
    return made


def say(line: str) -> None:
    """Print at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Measure all sizes; 1 if a planted rank was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", default=SIZES, metavar="RANKSxSTEPS")
    parser.add_argument("--stages", action="store_true", help="also tell where the time goes")
    parser.add_argument("--keep", type=Path, help="folder for the runs, which stay and serve again")
    parser.add_argument("--stages-of", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.stages_of:
        tell_stages(given.stages_of)
        return 0
    say(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
    place = nullcontext(given.keep) if given.keep else tempfile.TemporaryDirectory()
    with place as folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        sizes = [Size.parse(text) for text in given.sizes]
        right = [measure(size, Path(folder), stages=given.stages) for size in sizes]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
