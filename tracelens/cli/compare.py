"""`tracelens compare`: what changed from some runs to another, and whether that fails a gate."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from tracelens.cli.opening import add_keeping, add_limit, import_libraries, matched, measured, named
from tracelens.errors import InvalidArgument
from tracelens.remote.address import place

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from tracelens.comparison import Steps

NAME: Final = "compare"
HELP: Final = "say what changed from one run, or several, to another; fail if it is worse (for CI)"
EXAMPLES: Final = """\
  tracelens compare traces/before traces/after
  tracelens compare traces/main-1 traces/main-2 traces/main-3 traces/new --fail-if 'step_time>+3%'
  tracelens compare 'traces/main-*' traces/new --fail-if 'phase:data>+2ms' --fail-if faults
  tracelens compare traces/before traces/after --format markdown >> "$GITHUB_STEP_SUMMARY"
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `compare`."""
    parser.add_argument(
        "traces",
        type=place,
        nargs="+",
        metavar="RUN",
        help="baseline runs, and last the new one: trace folders, tables of spans, addresses, patterns",
    )
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help="exit with 1 if it holds, such as 'step_time>+3%%', 'phase:data>+2ms', 'efficiency<-2%%', "
        "'faults' or a kind of finding; again for each (docs/compare.md)",
    )
    parser.add_argument(
        "--map", action="append", metavar="THEIRS=OURS", help="as of analyze, of all"
    )
    add_limit(parser)
    add_keeping(parser)
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text")


def run(arguments: argparse.Namespace) -> int:
    """Compare and print; exit code 1 if a gate failed."""
    import_libraries()
    from tracelens.comparison import compare, comparison_format
    from tracelens.comparison.gates import judge, parse

    gates = [parse(text) for text in arguments.fail_if]
    places = matched(arguments.traces)
    if len(places) < 2:
        given = ", ".join(map(named, places))
        raise InvalidArgument(
            f"Found one run, {given}: expected baseline runs, and last the new one."
        )
    *baselines, new = [_steps(path, arguments) for path in places]
    found = compare(baselines, new)
    outcomes = judge(gates, found)
    sys.stdout.write(comparison_format(arguments.format).render(found, outcomes))
    return int(any(outcome.failed for outcome in outcomes))


def _steps(path: Path, arguments: argparse.Namespace) -> Steps:
    from dataclasses import replace

    from tracelens.comparison import Steps

    return replace(Steps.of(measured(path, arguments)), name=named(path))
