"""What recording costs: all our ways to record, and everything that one could use instead.

Ratios are to two clock reads and a list append written inline, which carry over between machines;
nanoseconds do not. Both of our recorders, in C and in Python, are measured in processes of their own
that take turns; other recorders beside the one in C. A recorder that is not there is told, with the
reason: `make bench NAME=peers` installs those that can be.

Run: make bench NAME=recorder [PUBLISH=1] [ARGS="--rounds N"]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.published import publish
from benchmarks.quick import parse_quick
from benchmarks.recorders import pages, survival
from benchmarks.recorders.found import Found
from benchmarks.recorders.known import PEERS, RECORDERS
from benchmarks.recorders.ours import TraceLens
from benchmarks.recorders.starting import starts
from benchmarks.recorders.timing import Row, measure

import tracelens as tl
from tracelens_instrument.core.backend import backend

SCRIPT = "tests/benchmarks/recorder.py"
PAGE = "benchmarks.md"
SWITCHES = {"native": "1", "python": "0"}
ERROR_CHARACTERS = 4000  # of a child's errors, from their end


def measure_here(rounds: int) -> None:
    """Measure in this process, and print what was found."""
    peers = PEERS if backend()[0] == "native" else ()
    # Others may still write when the folder is removed: it must not end the process.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        found = measure([TraceLens, *peers], Path(folder), rounds)
        tl.stop()
    sys.stdout.write(f"\n{json.dumps((backend()[0], *found))}\n")
    sys.stdout.flush()
    os._exit(0)  # some recorders' ends take long, or print


def measure_both(rounds: int, turns: int) -> tuple[dict[str, Found], dict[str, str]]:
    """Measure both of our recorders in processes of their own, in turns."""
    found_by_recorder: dict[str, Found] = {}
    failed: dict[str, str] = {}
    for _ in range(turns):
        for name, switch in SWITCHES.items():
            command = [sys.executable, __file__, "--one", "--rounds", str(rounds)]
            environment = os.environ | {"TRACELENS_NATIVE": switch}
            used, rows, reasons = json.loads(last_line(command, environment))
            failed |= reasons
            if used == name:
                found_by_recorder.setdefault(name, Found([])).add(Row(**row) for row in rows)
    return found_by_recorder, failed


def last_line(command: list[str], environment: dict[str, str]) -> str:
    """Run a child, and return the last line that it prints.

    Raises:
        SystemExit: it failed; with the end of what it wrote to stderr.
    """
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip():
        raise SystemExit(
            f"A process that measures ended with exit code {done.returncode}, expected 0 and a line "
            f"of results. Its errors end with:\n{done.stderr[-ERROR_CHARACTERS:].strip() or '(nothing)'}"
        )
    return done.stdout.splitlines()[-1]


def versions() -> dict[str, str]:
    """Tell which versions are installed."""
    version_by_name = {"TraceLens": "this one", "logging, JSON lines": platform.python_version()}
    for kind in RECORDERS:
        if kind.distribution and kind is not TraceLens:
            try:
                version_by_name[kind.name] = importlib.metadata.version(kind.distribution)
            except importlib.metadata.PackageNotFoundError:
                continue
    return version_by_name


def report(arguments: argparse.Namespace) -> str:
    """Measure all, and return it as Markdown."""
    found_by_recorder, failed = measure_both(arguments.rounds, arguments.turns)
    able = [kind for kind in RECORDERS if kind.name not in failed and arguments.only in kind.name]
    started = starts({kind.name: kind.start for kind in able}, arguments.starts)
    ended = survival.after_end(able, arguments.spans)
    killed = survival.after_kill(able, arguments.kills, arguments.spans // 4)
    sections = [
        pages.promises(found_by_recorder),
        pages.cost_of_ours(found_by_recorder),
        pages.cost_of_peers(next(iter(found_by_recorder.values())), failed),
        pages.kept_and_started(ended, killed, started, versions()),
    ]
    return "\n\n".join(sections)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--turns", type=int, default=3, help="processes of each of our recorders")
    parser.add_argument("--starts", type=int, default=11, help="of each recorder")
    parser.add_argument("--kills", type=int, default=5, help="of each recorder")
    parser.add_argument("--only", default="", help="start and kill those whose names hold this")
    parser.add_argument(
        "--spans", type=int, default=20_000, help="until a proper end; a quarter, before a kill"
    )
    parser.add_argument("--publish", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--one", action="store_true", help="measure in this process")
    parser.add_argument("--child", nargs=4, help="record, to be killed or to end")
    return parser


def main() -> None:
    arguments = parse_quick(
        options(), rounds=1, turns=1, starts=1, kills=1, spans=400, only="TraceLens"
    )
    if arguments.child:
        survival.child(*arguments.child)
    elif arguments.one:
        measure_here(arguments.rounds)
    else:
        text = report(arguments)
        sys.stdout.write(text + "\n")
        if arguments.publish:
            publish(PAGE, SCRIPT, text)


if __name__ == "__main__":
    main()
