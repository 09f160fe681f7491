"""What reading other tools' files takes, of each format: events a CPU second, memory beside the file.

Files are made as the tests make them, large; each is opened (`tracelens.open`: read, clocks aligned,
steps and collectives found) in a process of its own, less what opening a small one takes. Events are
those that the trace then has. Profiles of torch.profiler have a benchmark of their own (`kineto.py`).

Run: make bench NAME=formats [PUBLISH=1] [ARGS="--events N --rounds N --only otf2,xplane"]
"""

from __future__ import annotations

import argparse
import json
import pickle
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.published import publish, table
from benchmarks.quick import parse_quick
from benchmarks.scaling.bounds import machine, write_spread
from benchmarks.scaling.cost import Cost, measure_command
from benchmarks.scaling.runs import same_imports
from support import (
    horovod_timeline,
    inspector_files,
    otlp_files,
    perfetto_files,
    rocprof_files,
    stack_files,
    viztracer_file,
    xplane_files,
)
from support import nsight as nsight_files
from support import otf2_archives as otf2_files

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPT: Final = "tests/benchmarks/formats.py"
PAGE: Final = "formats.md"
HEADS: Final = ("file", "events", "MB", "events a CPU second", "memory, x the file")
MEGABYTE: Final = 1e6
RANKS: Final = 2
SMALL: Final = 500  # events
OPEN: Final = """
import sys
import tracelens as tl
print(tl.open(sys.argv[1]).processes["events"].sum())
"""


def dftracer(path: Path, events: int) -> Path:
    """Write calls of I/O, a line each."""
    with path.open("w", encoding="utf-8") as out:
        out.write("[\n")
        for number in range(events):
            call: dict[str, Any] = {
                "id": number, "name": "read", "cat": "POSIX", "pid": 7, "tid": 7,
                "ts": 1_700_000_000_000_000 + 20 * number, "dur": 15, "ph": "X",
                "args": {"hhash": "h", "ret": 4096, "fhash": "f", "level": 2},
            }  # fmt: skip
            out.write(json.dumps(call) + "\n")
    return path


def flight_recorder(folder: Path, events: int) -> Path:
    """Write dumps of ranks that made the same calls."""
    folder.mkdir()
    entries = [
        {
            "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number, "is_p2p": False,
            "pg_id": 0, "process_group": ("0", "default_pg"), "profiling_name": "nccl:all_reduce",
            "input_sizes": [[1024]], "input_dtypes": ["Float"],
            "output_sizes": [[1024]], "output_dtypes": ["Float"],
            "time_created_ns": 1_700_000_000_000_000_000 + 10**6 * number, "duration_ms": 0.5,
            "state": "completed", "retired": True, "timeout_ms": 600_000, "frames": [],
            "time_discovered_started_ns": 1_700_000_000_000_100_000 + 10**6 * number,
            "time_discovered_completed_ns": 1_700_000_000_000_600_000 + 10**6 * number,
        }
        for number in range(events // RANKS)
    ]  # fmt: skip
    group = {"0": {"name": "0", "desc": "default_pg", "ranks": json.dumps([*range(RANKS)])}}
    content = {"version": "2.10", "pg_config": group, "pg_status": {}, "entries": entries}
    for rank in range(RANKS):
        (folder / f"dump_{rank}").write_bytes(pickle.dumps(content))
    return folder


def horovod(path: Path, events: int) -> Path:
    """Write the timeline of a training."""
    path.write_bytes(horovod_timeline.timeline(steps=events // 15))
    return path


def nsight(folder: Path, events: int) -> Path:
    """Write the export of each rank."""
    folder.mkdir()
    for rank in range(RANKS):
        export = nsight_files.training(rank, steps=events // RANKS // 6)
        export.write(folder / f"rank{rank}.sqlite")
    return folder


def otf2(folder: Path, events: int) -> Path:
    """Write an archive of all ranks."""
    return otf2_files.write(folder, otf2_files.training(RANKS, events // RANKS // 5))


def perfetto(path: Path, events: int) -> Path:
    """Write a trace of all ranks."""
    path.write_bytes(perfetto_files.training(RANKS, events // RANKS // 5).written())
    return path


def otlp(path: Path, events: int) -> Path:
    """Write spans of all ranks, in JSON or protobuf."""
    data = otlp_files.training_with_named_calls(RANKS, events // RANKS // 5)
    lines = path.name.endswith(".jsonl")
    path.write_bytes(otlp_files.as_lines(data) if lines else otlp_files.framed(data, "lengths"))
    return path


def nccl_inspector(path: Path, events: int) -> Path:
    """Write calls of a rank, with their times."""
    path.write_bytes(inspector_files.lines(inspector_files.training(0, events // 2)))
    return path


def rocprof(path: Path, events: int) -> Path:
    """Write kernels, copies and ranges of a rank."""
    path.write_bytes(rocprof_files.training(events // 10).written())
    return path


def py_spy(path: Path, events: int) -> Path:
    """Write events of a thread."""
    path.write_bytes(stack_files.py_spy(events // 3))
    return path


def speedscope(path: Path, events: int) -> Path:
    """Write samples of a thread."""
    path.write_bytes(stack_files.speedscope(events // 3))
    return path


def viztracer(path: Path, events: int) -> Path:
    """Write calls of a program."""
    path.write_bytes(viztracer_file.trace(events // len(viztracer_file.CALLS)))
    return path


def xplane(path: Path, events: int) -> Path:
    """Write the profile of a process with a device."""
    return xplane_files.write(path, xplane_files.training(events // 4))


WRITERS: Final[dict[str, tuple[str, str, Callable[[Path, int], Path]]]] = {
    "nsight": ("Nsight Systems (SQLite)", "ranks", nsight),
    "flight_recorder": ("Flight Recorder", "dumps", flight_recorder),
    "dftracer": ("DFTracer", "trace.pfw", dftracer),
    "otf2": ("OTF2", "archive", otf2),
    "horovod": ("Horovod's timeline", "timeline.json", horovod),
    "perfetto": ("Perfetto (protobuf)", "trace.pftrace", perfetto),
    "otlp": ("OpenTelemetry (JSON lines)", "spans.jsonl", otlp),
    "otlp_messages": ("OpenTelemetry (protobuf)", "spans.pb", otlp),
    "nccl_inspector": ("NCCL Inspector", "node0-pid1.log", nccl_inspector),
    "rocprof": ("rocprofv3", "1_results.json", rocprof),
    "viztracer": ("VizTracer", "trace.json", viztracer),
    "py_spy": ("py-spy (chrometrace)", "profile.json", py_spy),
    "speedscope": ("speedscope", "profile.speedscope.json", speedscope),
    "xplane": ("XPlane", "vm.xplane.pb", xplane),
}


def size_of(place: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    files = place.rglob("*") if place.is_dir() else [place]
    return sum(file.stat().st_size for file in files if file.is_file())


def opening(place: Path, folder: Path) -> tuple[Cost, int]:
    """Open a trace; return what that took, and how many events it has."""
    command = [sys.executable, "-c", OPEN, str(place)]
    cost = measure_command(command, folder / "out", environment=same_imports())
    return cost, int((folder / "out").read_text())


def reading(name: str, events: int, rounds: int, folder: Path) -> list[str]:
    """Measure reading one file; return its row."""
    title, called, write = WRITERS[name]
    (folder / "small").mkdir()
    small, large = write(folder / "small" / called, SMALL), write(folder / called, events)
    file_bytes = size_of(large.parent if name == "otf2" else large)
    rates, memory, span_count = [], [], 0
    for _ in range(rounds):
        small_cost, few = opening(small, folder)
        cost, span_count = opening(large, folder)
        rates.append((span_count - few) / (cost.cpu - small_cost.cpu))
        memory.append((cost.peak - small_cost.peak) / file_bytes)
    sys.stdout.write(f"{title}: {span_count:,} events, {write_spread(rates)} a CPU second\n")
    row = [
        title,
        f"{span_count:,}",
        f"{file_bytes / MEGABYTE:.1f}",
        write_spread(rates),
        write_spread(memory),
    ]
    shutil.rmtree(folder)
    return row


def main() -> None:
    """Measure all formats, or some, and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--events", type=int, default=200_000, help="of each file, about")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(WRITERS), help="some formats, with commas")
    parser.add_argument("--publish", action="store_true", help=f"write docs/{PAGE}")
    options = parse_quick(parser, events=2000, rounds=1, only="dftracer,flight_recorder")
    rows = []
    for name in options.only.split(","):
        folder = Path(tempfile.mkdtemp())
        rows.append(reading(name, options.events, options.rounds, folder))
    text = f"{table('What reading takes', HEADS, rows)}\n\nMeasured on {machine()}."
    sys.stdout.write(text + "\n")
    if options.publish:
        publish(PAGE, SCRIPT, text)


if __name__ == "__main__":
    main()
