"""What is made once and then changed: a report by the command itself, archives by OTF2's library."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from support.hostile.run import MS
from support.hostile.tables import sound_table

if TYPE_CHECKING:
    from random import Random

_ARCHIVES: Final = 24  # archives that are made, of different extreme values [chosen]
_TICKS: Final = (0, 5_000_000_000, 9_000_000_000_000_000_000, 2**63, 2**64 - 10**10)
_RATES: Final = (1, 1000, 10**9, 2_095_197_216, 10**15)


def make() -> None:
    """Make all of them, before processes are forked that share them."""
    sound_report()
    exported_files()
    if find_spec("otf2") is not None:
        archives()


def sound_report() -> Any:
    """Return a report of a small run, a new copy each time."""
    return json.loads(_report_text())


@cache
def _report_text() -> str:
    """Run the command in its own process, so that this one stays without threads; return its output."""
    with tempfile.TemporaryDirectory() as folder:
        table = sound_table(Path(folder))
        command = [sys.executable, "-m", "tracelens", "analyze", str(table), "--format", "json"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@cache
def exported_files() -> list[tuple[str, bytes]]:
    """Convert a small run for viewers and collectors; return names and contents of the files."""
    names = {"perfetto": "run.json", "otlp": "run.jsonl", "speedscope": "run.speedscope.json"}
    files = []
    with tempfile.TemporaryDirectory() as folder:
        table = sound_table(Path(folder))
        for target, name in names.items():
            out = Path(folder) / name
            command = [sys.executable, "-m", "tracelens", "convert", str(table), "--to", target]
            done = subprocess.run([*command, "--out", str(out)], capture_output=True, check=False)
            if done.returncode == 0:
                files.append((name, out.read_bytes()))
    return files


def archive_files(random: Random) -> dict[str, bytes]:
    """Return the files of one of the archives, by name."""
    found = archives()
    return found[random.randrange(len(found))]


@cache
def archives() -> list[dict[str, bytes]]:
    """Write archives whose clocks, times and sizes are drawn from extreme ones."""
    archives_files = []
    for number in range(_ARCHIVES):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "archive"
            _write(
                path,
                _TICKS[number % len(_TICKS)],
                _RATES[number // 5 % len(_RATES)],
                ranks=1 + number % 3,
            )
            archives_files.append(
                {
                    str(file.relative_to(path)): file.read_bytes()
                    for file in sorted(path.rglob("*"))
                    if file.is_file()
                }
            )
    return archives_files


def _write(path: Path, first: int, rate: int, ranks: int) -> None:
    import otf2  # noqa: PLC0415 - an extra
    from otf2.enums import CollectiveOp, GroupType, Paradigm, RegionRole  # noqa: PLC0415

    with otf2.writer.open(str(path), timer_resolution=rate) as trace:
        definitions = trace.definitions
        node = definitions.system_tree_node("node0", class_name="node")
        processes = [
            definitions.location_group(f"MPI Rank {rank}", system_tree_parent=node)
            for rank in range(ranks)
        ]
        locations = tuple(
            definitions.location("Master thread", group=process) for process in processes
        )
        definitions.group("", GroupType.COMM_LOCATIONS, Paradigm.MPI, members=locations)
        members = definitions.group("", GroupType.COMM_GROUP, Paradigm.MPI, members=locations)
        world = definitions.comm("MPI_COMM_WORLD", members)
        step = definitions.region("step 1", region_role=RegionRole.FUNCTION, paradigm=Paradigm.USER)
        reduce = definitions.region(
            "MPI_Allreduce", region_role=RegionRole.COLL_ALL2ALL, paradigm=Paradigm.MPI
        )
        for rank, location in enumerate(locations):
            writer, now_ticks = trace.event_writer_from_location(location), first + rank
            for number in range(4):
                writer.enter(now_ticks, step)
                writer.enter(now_ticks + MS, reduce)
                writer.mpi_collective_begin(now_ticks + MS)
                writer.mpi_collective_end(
                    now_ticks + 2 * MS,
                    CollectiveOp.ALLREDUCE,
                    world,
                    0xFFFFFFFF,
                    64 << number,
                    2**63,
                )
                writer.leave(now_ticks + 2 * MS, reduce)
                writer.leave(now_ticks + 3 * MS, step)
                now_ticks += 3 * MS
