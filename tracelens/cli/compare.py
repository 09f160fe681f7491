"""`tracelens compare`: what changed from some runs to another, and whether that fails a gate."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tracelens.cli import runs

if TYPE_CHECKING:
    import argparse

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
    runs.add_runs(
        parser,
        "baseline runs, and last the new one: trace folders, tables of spans, addresses, patterns",
    )
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help="exit with 1 if it holds, such as 'step_time>+3%%', 'phase:data>+2ms', 'efficiency<-2%%', "
        "'faults' or a kind of finding; again for each (docs/compare.md)",
    )
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text")


def run(arguments: argparse.Namespace) -> int:
    """Compare and print; exit code 1 if a gate failed."""
    runs.import_libraries()
    from tracelens.comparison import RunMetrics, compare
    from tracelens.comparison.formats import COMPARISONS
    from tracelens.comparison.gates import judge, parse

    gates = [parse(text) for text in arguments.fail_if]
    *baselines, new = [
        replace(RunMetrics.from_run(run), name=runs.write_name(path))
        for path, run in runs.measure_runs(arguments, "baseline runs, and last the new one")
    ]
    comparison = compare(baselines, new)
    outcomes = judge(gates, comparison)
    sys.stdout.write(COMPARISONS[arguments.format](comparison, outcomes))
    return int(any(outcome.has_failed for outcome in outcomes))
