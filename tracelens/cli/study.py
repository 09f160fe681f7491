"""`tracelens study`: a paper's system at its scale, with what is published and what is assumed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from tracelens.cli import runs
from tracelens.remote.address import parse_place

if TYPE_CHECKING:
    import argparse

NAME: Final = "study"
HELP: Final = (
    "compute and simulate what a paper measured, and tag each number with where it comes from"
)
EXAMPLES: Final = """\
  tracelens study cori    # ResNet-50 with parameter servers: why 23 % of 512 workers?
  tracelens study cori --trace traces/servers    # overlap or incast in a run of yours?
  tracelens study phub --format markdown
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `study`."""
    from tracelens.studies import STUDIES

    parser.add_argument("study", choices=STUDIES, help="which (docs/studies.md)")
    parser.add_argument(
        "--trace",
        type=parse_place,
        metavar="RUN",
        action="append",
        default=[],
        help="a run of yours to ask the same of: with servers (cori), allreduces, updates, or EASGD; "
        "repeatable",
    )
    runs.add_limit(parser)
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text")


def run(arguments: argparse.Namespace) -> int:
    """Compute, simulate, print."""
    runs.import_libraries()
    from tracelens.studies import study
    from tracelens.studies.formats import FORMATS

    traces = {
        runs.write_name(run): runs.open_path(arguments, runs.fetch_copy(run))
        for run in arguments.trace
    }
    sys.stdout.write(FORMATS[arguments.format](study(arguments.study, traces)))
    return 0
