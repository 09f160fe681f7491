"""What the dashboard costs on large runs: making the index, its size, and what a user waits for.

A run of 512 ranks is written with the real schema, as recorders would have; its index is made as by
`tracelens index`, in a process of its own: reading, explaining, indexing. A fresh process opens it with
its files not in memory (`cold_open.py`). Another one opens it and answers random windows of many widths,
through the application's own callback: the time includes drawing, packing and JSON, all that a server
does but the socket. Last, a real browser (Debian's Chromium, without
a GPU) opens pages of a served run and zooms (`browsing.py`). A second run has 4,096 ranks.

On a busy machine the processor's time says more than the clock's.

Run: make bench NAME=dashboard [PUBLISH=1] [SPANS=100000000] [KEEP=DIR] [ARGS="--ranks 512"]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from benchmarks.published import publish, table
from benchmarks.quick import parse_quick
from benchmarks.resident import memory_of, resident
from support.runs.large_runs import LargeRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.web.asking import Answer

    from tracelens_dashboard.runs.store import Store

SHARES: Final = (1.0, 0.5, 0.3, 0.1, 0.03, 0.01, 0.005, 0.001, 0.0003, 0.0001)
LOOKS: Final = 40  # of each width, at the server
ZOOMED: Final = 4  # in the browser one of so many
PAINTS: Final = 3  # of each page
OPENED: Final = ("1", "2", "3", "4")
SEARCHED: Final = "bucket 3"
MANY_RANKS: Final = 4096
MOST_SPANS: Final = 6_000_000  # of the run with many ranks
LOOK_EVERY_S: Final = 0.05
SCRIPT: Final = "tests/benchmarks/dashboard.py"
PAGE: Final = "dashboard-costs.md"


def main() -> int:
    """Make, index, ask and browse."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spans", nargs="?", type=lambda text: int(float(text)), default=10_000_000)
    parser.add_argument("--ranks", type=int, nargs="*", default=[512, MANY_RANKS])
    parser.add_argument("--looks", type=int, default=LOOKS, help="windows of each width")
    parser.add_argument("--keep", type=Path, help="folder for the runs, which stay and serve again")
    parser.add_argument("--publish", action="store_true", help="write docs/dashboard-costs.md")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parse_quick(parser, spans=20_000, ranks=[8], looks=1)
    if options.part:
        found = PARTS[options.part](options.keep, options.looks)
        sys.stdout.write(json.dumps(found) + "\n")
        return 0
    load = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before"
    say(load)
    place = nullcontext(options.keep) if options.keep else tempfile.TemporaryDirectory()
    with place as folder:
        runs = [
            LargeRun.of(
                min(options.spans, MOST_SPANS if ranks == MANY_RANKS else options.spans), ranks
            )
            for ranks in options.ranks
        ]
        measured = {titled(run): measure(run, Path(folder), options.looks) for run in runs}
    text = table(f"Measured on {load}", *arranged(measured))
    say(text)
    if options.publish:
        publish(PAGE, SCRIPT, text)
    return 0


def titled(run: LargeRun) -> str:
    """Say how large a run is."""
    return f"{run.ranks} ranks x {run.steps} steps = {run.spans / 1e6:.1f} M spans"


def arranged(measured: dict[str, dict[str, str]]) -> tuple[list[str], list[list[str]]]:
    """Put what was measured of several runs side by side: head and rows."""
    names = dict.fromkeys(name for found in measured.values() for name in found)
    rows = [[name, *(found.get(name, "") for found in measured.values())] for name in names]
    return ["", *measured], rows


def measure(run: LargeRun, folder: Path, looks: int) -> dict[str, str]:
    """Do every part in a process of its own; return what it found, in words, by name."""
    say(titled(run))
    trace = folder / f"{run.ranks}x{run.steps}"
    if not trace.exists():
        trace.mkdir(parents=True)
        for rank in range(run.ranks):
            run.write(rank, trace)
    results: dict[str, str] = {}
    for part in PARTS:
        command = [sys.executable, __file__, "--keep", str(trace), "--part", part]
        command += ["--looks", str(looks)]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        part_results: dict[str, str] = json.loads(answer.stdout.splitlines()[-1])
        for name, value in part_results.items():
            say(f"  {name}: {value}")
        results |= part_results
    return results


def make_index(trace: Path, _looks: int) -> dict[str, str]:
    """Do what `tracelens index` does; of an index that is there, tell only how large it is."""
    from tracelens import load  # noqa: PLC0415 - only this process needs them
    from tracelens.lod import index  # noqa: PLC0415
    from tracelens.lod.opening import MEMORY  # noqa: PLC0415
    from tracelens.lod.run_data import make_run_and_lanes  # noqa: PLC0415
    from tracelens.verdicts.report import analyze  # noqa: PLC0415

    if index.find(trace):
        return sizes(trace)
    clock = Clock()
    opened = clock.took("reading", load.open(trace, memory=MEMORY))
    report = clock.took("explaining", analyze(opened, memory=MEMORY))
    folder = index.write(trace, *make_run_and_lanes(opened, report))
    assert folder
    clock.took("indexing, without levels", folder)
    index.refine(folder)
    clock.took("indexing, levels", folder)
    return clock.told | sizes(trace)


class Clock:
    """Wall and processor time since the last look, and the most memory of this process's own."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self._last = time.perf_counter(), time.process_time()
        self._peak = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def took(self, name: str, made: Any) -> Any:
        """Book what happened since the last look."""
        reading = time.perf_counter(), time.process_time()
        wall, cpu = reading[0] - self._last[0], reading[1] - self._last[1]
        own = f"at most {self._peak / 2**30:.1f} GiB"
        self.told[name] = f"{cpu:.1f} s of processors ({wall:.0f} s by the clock), {own}"
        self._last, self._peak = reading, 0
        return made

    def _watch(self) -> None:
        while True:
            self._peak = max(self._peak, resident()[0])
            time.sleep(LOOK_EVERY_S)


def sizes(trace: Path) -> dict[str, str]:
    """Tell how large trace and index are."""
    from tracelens.lod import index  # noqa: PLC0415

    folder = index.find(trace)
    assert folder
    written = sum(file.stat().st_size for file in trace.glob("*.arrow"))
    index_sizes = index.count_bytes(folder)
    results = {
        f"index, {name}": f"{size / 1e6:.1f} MB, {size / written:.1%} of the trace"
        for name, size in {"in all": sum(index_sizes.values()), **index_sizes}.items()
    }
    return {"trace": f"{written / 1e6:.0f} MB"} | results


def ask(trace: Path, looks: int) -> dict[str, str]:
    """Open the index, answer zooms and drags, with processes closed and opened; search."""
    started = time.perf_counter()
    from support.web.asking import asker, open_store  # noqa: PLC0415 - what it imports counts

    store = open_store(trace)
    closed = asker(store)
    results = {"opening the index, libraries included": f"{time.perf_counter() - started:.1f} s"}
    zooms = zoomed(closed, store.run_window.width_ns, looks)
    started = time.perf_counter()
    for key in OPENED:
        store.open_process_tracks(store.scene_row_by_key[key])
    took = (time.perf_counter() - started) / len(OPENED)
    opened_zooms = zoomed(asker(store, *OPENED), store.run_window.width_ns, looks)
    max_bytes = max(look.sent for look in [*zooms, *opened_zooms])
    return results | {
        f"the server's part of a zoom or drag ({len(zooms)} of all widths)": describe_looks(zooms),
        f"the same with {len(OPENED)} ranks opened": describe_looks(opened_zooms),
        "opening a rank, the first time": f"{took:.2f} s",
        "bytes of an answer on the wire": f"at most {max_bytes / 1e3:.0f} kB",
        "memory after them": memory_of(),
        **searched(store, looks),
    }


def zoomed(answer: Callable[[int, int], Answer], width: int, looks: int) -> list[Answer]:
    """Ask for windows of all widths."""
    draw, answers = np.random.default_rng(0), []
    for share in SHARES:
        length = int(width * share)
        begins = draw.integers(0, max(1, width - length), looks).tolist()
        for begin in begins:  # once to bring in what is on the disk
            answer(begin, begin + length)
        answers += [answer(begin, begin + length) for begin in begins]
    return answers


def searched(store: Store, looks: int) -> dict[str, str]:
    """Count all names, search for one, and go from one span to the next."""
    from tracelens_dashboard.components.timeline import finding  # noqa: PLC0415

    started = time.perf_counter()
    _ = store.span_names.name_table
    counting_s = time.perf_counter() - started
    took, position = [], None
    for _ in range(looks):
        started = time.perf_counter()
        finding.list_matches(store, SEARCHED)
        hit = finding.find_next_hit(store, SEARCHED, position, 1)
        assert hit
        position = hit.position
        took.append((time.perf_counter() - started) * 1e3)
    median_ms, p95_ms = np.median(took), np.quantile(took, 0.95)
    return {
        "counting all names, once": f"{counting_s:.1f} s",
        "a search and the next span": f"{median_ms:.0f} ms, 95 % within {p95_ms:.0f} ms",
    }


def describe_looks(looks: list[Answer]) -> str:
    """Tell medians and 95 % quantiles."""
    wall, cpu = ([getattr(look, name) for look in looks] for name in ("ms", "cpu_ms"))
    return (
        f"{np.median(cpu):.0f} ms of processor, 95 % within {np.quantile(cpu, 0.95):.0f} ms "
        f"({np.median(wall):.0f} and {np.quantile(wall, 0.95):.0f} ms by the clock)"
    )


def open_cold(trace: Path, _looks: int) -> dict[str, str]:
    """Open the run as if nobody had looked at it since the machine was started."""
    from benchmarks.cold_open import cold_open  # noqa: PLC0415 - only this process needs it

    return cold_open(trace)


def browse(trace: Path, looks: int) -> dict[str, str]:
    """Do what a user does, in a browser."""
    from benchmarks.browsing import browse as look  # noqa: PLC0415 - only this process needs it

    zooms = max(looks // ZOOMED, 1)
    return look(trace, min(PAINTS, zooms), zooms)


def say(line: str) -> None:
    """Print at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


PARTS: Final = {"index": make_index, "open": open_cold, "ask": ask, "browse": browse}

if __name__ == "__main__":
    sys.exit(main())
