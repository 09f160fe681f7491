"""What a person waits for who serves a run that nobody looked at since the machine was started.

The files of the index are taken out of the system's memory first; the libraries are as the system has
them. A fresh process then imports what `tracelens serve` does, opens the run, builds the application,
and draws the overview and the timeline once. It tells processor seconds, which include the start of
Python, and what came from the disk.

Run: make bench NAME=cold-open ARGS="TRACE [TRACE ...]"
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks.quick import parse_quick

__all__ = ["cold_open"]

STAGES: Final = {
    "libraries": "libraries are imported",
    "index": "the run is open",
    "overview": "the overview is drawn",
    "timeline": "the timeline is drawn",
}
_ONE: Final = "--here"


def cold_open(trace: Path) -> dict[str, str]:
    """Open a run in a fresh process; return, by stage, what it took until then."""
    from tracelens.lod import index  # noqa: PLC0415 - not in the process that is measured

    folder = index.find(trace)
    assert folder, f"{trace} has no index: tracelens index {trace}"
    for file in folder.iterdir():
        forget(file)
    command = [sys.executable, __file__, _ONE, str(trace)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, str] = json.loads(answer.stdout.splitlines()[-1])
    return {f"cold, until {STAGES[stage]}": value for stage, value in found.items()}


def forget(file: Path) -> None:
    """Let the system take a file out of its memory."""
    with file.open("rb") as opened:
        os.fdatasync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def look(trace: Path) -> dict[str, str]:
    """Do what a server does until pages stand there."""
    began, results = time.perf_counter(), {}
    from tracelens_dashboard import theme  # noqa: PLC0415 - what they import counts
    from tracelens_dashboard.app.server import create_app  # noqa: PLC0415
    from tracelens_dashboard.figures import overview as charts  # noqa: PLC0415
    from tracelens_dashboard.figures import stragglers  # noqa: PLC0415
    from tracelens_dashboard.figures.timeline import plot  # noqa: PLC0415
    from tracelens_dashboard.pages import overview  # noqa: PLC0415
    from tracelens_dashboard.runs.store import Store  # noqa: PLC0415
    from tracelens_dashboard.view import viewport  # noqa: PLC0415
    from tracelens_dashboard.view.state import ViewState  # noqa: PLC0415

    read_before = from_disk()
    results["libraries"] = so_far(began, read_before)
    store = Store.from_index(trace)
    assert store
    create_app(store)
    results["index"] = so_far(began, read_before)
    overview.layout(store, ViewState())
    charts.waterfall(store.report.efficiency, theme.LIGHT)
    charts.step_parts(store.category_times, theme.LIGHT)
    stragglers.by_host(store.residuals, store.host_by_rank, theme.LIGHT)
    results["overview"] = so_far(began, read_before)
    frame = viewport.frame(store, viewport.Controls())
    plot.draw(frame, viewport.picture(frame), theme.LIGHT)
    results["timeline"] = so_far(began, read_before)
    return results


def so_far(began: float, before: int) -> str:
    """Tell processor seconds since the process began, the clock's, and bytes of the index read."""
    wall = time.perf_counter() - began
    read = (from_disk() - before) / 1e6
    return (
        f"{time.process_time():.2f} s of processors ({wall:.1f} s by the clock), {read:.1f} MB read"
    )


def from_disk() -> int:
    """Return how many bytes this process has had read from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def main() -> int:
    """Tell of each trace what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE")
    parser.add_argument(_ONE, action="store_true", help=argparse.SUPPRESS)
    options = parse_quick(parser)
    if options.here:
        sys.stdout.write(json.dumps(look(options.traces[0])) + "\n")
        return 0
    for trace in options.traces:
        sys.stdout.write(f"{trace.name}\n")
        for stage, took in cold_open(trace).items():
            sys.stdout.write(f"  {stage}: {took}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
