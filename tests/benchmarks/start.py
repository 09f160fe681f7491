"""What it costs a training to import TraceLens and to start recording.

Fresh processes, in turns with ones that only end, and beside a loaded PyTorch where it is installed.

Run: make bench NAME=start [PUBLISH=1] [ARGS="--rounds N"]
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from typing import Final

from benchmarks.published import publish, table
from benchmarks.quick import parse_quick
from benchmarks.recorders.ours import TraceLens
from benchmarks.recorders.starting import Start, measure_loaded, starts

SCRIPT: Final = "tests/benchmarks/start.py"
PAGE: Final = "benchmarks.md"
MOST_MS: Final = 40
LIBRARY: Final = "torch"
IMPORTED: Final = "import tracelens"
BACKENDS: Final = {"native": "1", "python": "0"}


def choose_recorder(switch: str, code: str) -> str:
    """Return code that begins with the choice of a recorder."""
    return f"import os\nos.environ['TRACELENS_NATIVE'] = '{switch}'\n{code}"


def report(rounds: int) -> str:
    """Measure all, and return it as Markdown."""
    codes = {"`import tracelens`": IMPORTED}
    codes |= {
        f"{backend}: and `tl.start(folder)`": choose_recorder(switch, TraceLens.start)
        for backend, switch in BACKENDS.items()
    }
    start_times = starts(codes, rounds)
    if importlib.util.find_spec(LIBRARY) is not None:
        start_times["native: both, where PyTorch is loaded"] = measure_loaded(
            LIBRARY, TraceLens.start, rounds
        )
    head = ["beyond a bare interpreter", "CPU ms", f"<= {MOST_MS}", "of its own", "least CPU ms"]
    return table(
        f"Import and start, {rounds} processes each",
        head,
        map(row, *zip(*start_times.items(), strict=True)),
    )


def row(what: str, start: Start) -> list[str]:
    share = f"{start.cpu_ms / start.bare_ms:.2f} x" if start.bare_ms else ""
    held = "yes" if start.cpu_ms <= MOST_MS else "**no**"
    return [what, f"{start.cpu_ms:.1f}", held, share, f"{start.least_ms:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--publish", action="store_true", help="write docs/benchmarks.md")
    arguments = parse_quick(parser, rounds=1)
    text = report(arguments.rounds)
    sys.stdout.write(text + "\n")
    if arguments.publish:
        publish(PAGE, SCRIPT, text)


if __name__ == "__main__":
    main()
