"""`tracelens doctor`: whether this machine can record, and what prevents it."""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

    from tracelens.cli.checks import Check

NAME: Final = "doctor"
HELP: Final = (
    "check whether this machine can record: really tries it, and reports how to fix what fails"
)
EXAMPLES: Final = """\
  tracelens doctor
  tracelens doctor --out /shared/traces/today
  mpiexec -n 1 tracelens doctor --format json
"""
_WIDTH: Final = 96


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `doctor`."""
    parser.add_argument("--out", type=Path, help="the trace folder that is going to be used")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(arguments: argparse.Namespace) -> int:
    """Check everything and print it; 1 if something would stop recording."""
    from tracelens.cli.checks import check_all

    checks = check_all(arguments.out)
    if arguments.format == "json":
        sys.stdout.write(json.dumps([asdict(check) for check in checks], indent=2) + "\n")
    else:
        sys.stdout.write("\n".join(_write_lines(checks)) + "\n")
    return int(any(check.state == "problem" for check in checks))


def _write_lines(checks: list[Check]) -> list[str]:
    """Return a paragraph per check, and a verdict; no colour, as nodes may lack its library."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        label = f"{check.state:8} {check.name:{width}}  "
        sentence = f"{check.found}. {check.advice}" if check.advice else check.found
        lines += textwrap.wrap(
            sentence, _WIDTH, initial_indent=label, subsequent_indent=" " * len(label)
        )
    problem_count = sum(check.state == "problem" for check in checks)
    verdict = "ready to record"
    if problem_count:
        verdict = f"{problem_count} problem(s) would stop recording"
    return [*lines, "", verdict]
