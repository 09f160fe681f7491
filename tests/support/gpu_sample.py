"""Record a real training on this machine's GPUs, and hold its device times against what must be true.

Needs what recording needs (PyTorch with CUDA, pyarrow, numpy, wrapt), not the analyzer.

Run: python -m support.gpu_sample FOLDER [options of instrument/examples/ddp_gpu.py]
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from support.device.gpu import Part, overlap_ns, read, torch

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
EXAMPLE: Final = ROOT / "instrument" / "examples" / "ddp_gpu.py"
BENCHMARK: Final = ROOT / "tests" / "benchmarks" / "device.py"
TIMED: Final = ("forward", "backprop", "bucket", "SGD")
SETTLED: Final = 5  # steps
CLOSE_NS: Final = 50_000  # the callback of a reduction runs on a stream of its own
WIDEST_NS: Final = 100_000
TIME_LIMIT: Final = 500


def record(folder: Path, options: list[str]) -> None:
    """Train with one process a GPU."""
    shutil.rmtree(folder, ignore_errors=True)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    count = f"--nproc-per-node={torch.cuda.device_count()}"
    subprocess.run(
        [*launcher, count, str(EXAMPLE), *options],
        env=os.environ | {"TRACELENS_DIR": str(folder)},
        check=True,
        timeout=TIME_LIMIT,
    )


def problems(process: Part) -> Iterator[str]:
    """Say what of a process cannot be."""
    if process.side["dropped"]:
        yield f"dropped: {process.side['dropped']}"
    for name in TIMED:
        events = [event for event in process.named(name) if event["step"] >= SETTLED]
        untimed = sum(event["device_start_ns"] is None for event in events)
        if untimed or not events:
            yield f"{untimed} of {len(events)} spans '{name}' have no device times"
    windows = [reading["window_ns"] for reading in process.readings]
    if len(windows) < 2 or statistics.median(windows) > WIDEST_NS:
        yield f"anchors are {windows} ns wide"
    yield from _out_of_order(process)


def _out_of_order(part: Part) -> Iterator[str]:
    """Say where the device did things in an order in which they cannot have been done."""
    for step, events_by_name in _steps(part).items():
        forward, backprop, update = (
            events_by_name[name][0] for name in ("forward", "backprop", "SGD")
        )
        if not _begin(forward) <= _begin(backprop) <= _begin(update):
            yield f"step {step}: forward, backprop, update do not follow each other"
        for bucket in events_by_name["bucket"]:
            if _begin(bucket) < _begin(backprop):
                yield f"step {step}: bucket {bucket['bucket']} was ready before backprop began"
            if _end(bucket) > _begin(update) + CLOSE_NS:
                yield f"step {step}: the update began before bucket {bucket['bucket']} was reduced"


def figures(process: Part) -> Iterator[str]:
    """Say what was measured."""
    windows = sorted(reading["window_ns"] for reading in process.readings)
    yield f"{len(process.events)} events, {len(process.timed)} of them with device times"
    middle = statistics.median(windows)
    yield f"anchors: {len(windows)}, {windows[0]} to {windows[-1]} ns wide, median {middle:.0f} ns"
    behind = [
        _begin(event) - event["start_ns"] for event in process.named("backprop") if _is_timed(event)
    ]
    yield f"backprop began {statistics.median(behind) / 1e6:.3f} ms after it was queued, median"
    backprop = [process.on_host(event) for event in process.named("backprop") if _is_timed(event)]
    buckets = [process.on_host(event) for event in process.named("bucket") if _is_timed(event)]
    reduced = sum(place.end_ns - place.start_ns for place in buckets)
    hidden = overlap_ns(backprop, buckets) / max(reduced, 1)
    yield f"reductions: {reduced / 1e6:.1f} ms, {hidden:.1%} of it beside backprop"


def _steps(part: Part) -> dict[int, dict[str, list[dict[str, Any]]]]:
    """Sort the comparable steps' device spans by name; leave out steps that lack some."""
    events_by_step: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for event in part.timed:
        if event["step"] >= SETTLED and event["name"] in TIMED:
            events_by_step.setdefault(event["step"], {}).setdefault(event["name"], []).append(event)
    return {step: names for step, names in events_by_step.items() if len(names) == len(TIMED)}


def _is_timed(event: dict[str, Any]) -> bool:
    return event["device_start_ns"] is not None


def _begin(event: dict[str, Any]) -> int:
    return int(event["device_start_ns"])


def _end(event: dict[str, Any]) -> int:
    return int(event["device_start_ns"] + event["device_duration_ns"])


def main() -> int:
    """Record, check, and say what timing costs."""
    if not torch.cuda.is_available():
        sys.stderr.write("This needs a CUDA device, and PyTorch that can use it.\n")
        return 1
    folder, *options = sys.argv[1:] or ["traces/ddp-gpu"]
    record(Path(folder), options)
    wrong = 0
    for number, process in enumerate(read(Path(folder))):
        for figure in figures(process):
            sys.stdout.write(f"process {number}: {figure}\n")
        for problem in problems(process):
            wrong += 1
            sys.stdout.write(f"process {number}: WRONG: {problem}\n")
    subprocess.run([sys.executable, str(BENCHMARK)], check=True, timeout=TIME_LIMIT)
    sys.stdout.write(f"{wrong} problems; the trace is in {folder}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
