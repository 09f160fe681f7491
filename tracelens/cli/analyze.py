"""`tracelens analyze`: what costs time, why, and what mending it would save."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

NAME: Final = "analyze"
HELP: Final = "say what costs time in a recorded run, findings first"
EXAMPLES: Final = """\
  tracelens analyze traces/today
  tracelens analyze traces/today --format json > report.json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `analyze`."""
    parser.add_argument("trace", type=Path, help="trace folder, as `tracelens record` wrote it")
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text")


def run(arguments: argparse.Namespace) -> int:
    """Open, analyze, print."""
    from tracelens.analyses import analyze
    from tracelens.cli.progress import progress
    from tracelens.load import open as open_trace
    from tracelens.reports import REPORTS

    with progress("reading") as tell:
        trace = open_trace(arguments.trace, progress=tell)
    with progress("analyzing") as tell:
        report = analyze(trace, progress=tell)
    sys.stdout.write(REPORTS[arguments.format].render(report).rstrip("\n") + "\n")
    return 0
