"""`tracelens analyze`: what costs time, why, and what fixing it would save."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens.cli.opening import (
    add_executor,
    add_memory,
    add_part,
    add_trace,
    choice_of,
    import_libraries,
    matched,
    memory_of,
    open_joined,
    progress,
)

if TYPE_CHECKING:
    import argparse

NAME: Final = "analyze"
HELP: Final = "report what costs time in a recorded run, findings first"
EXAMPLES: Final = """\
  tracelens analyze traces/today
  tracelens analyze traces/today --format json > report.json
  tracelens analyze traces/today --html report.html    # one file with charts, works offline
  tracelens analyze traces/today --ranks 0-7,12 --steps 200-260    # reads only what that needs
  tracelens analyze traces/today --time 10s-70s    # from the run's begin: the steps in that time
  tracelens analyze /nodes/*/today    # folders of one run, such as of node-local disks
  tracelens analyze s3://bucket/run   # or https://host/events.parquet (docs/remote.md)
  tracelens analyze events.parquet
  tracelens analyze events.csv --map worker_no=rank --map t0=start_us --map kind:predict=forward
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `analyze`."""
    add_trace(parser, also="several folders of one run, or a pattern of them", nargs="+")
    add_part(parser, time="the steps that reach into it")
    add_executor(parser)
    add_memory(parser)
    parser.add_argument(
        "--again", action="store_true", help="explain it anew, though its report was kept"
    )
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="also write a report with charts, in one file"
    )


def run(arguments: argparse.Namespace) -> int:
    """Open, analyze, print."""
    import_libraries()
    from tracelens.distil import kept_report
    from tracelens.parallel import opened
    from tracelens.reports import report_format

    places, choice = matched(arguments.trace), choice_of(arguments)
    again = arguments.again or arguments.html or arguments.map or arguments.one_clock
    report = None if again or len(places) > 1 else kept_report.find(places[0], choice)
    if report is None:
        with opened(arguments.executor) as executor:
            trace = open_joined(arguments, places, executor, choice)
            from tracelens.analyses import analyze

            with progress("analyzing") as on_progress:
                report = analyze(trace, on_progress, executor, memory_of(arguments))
        if len(places) == 1:
            kept_report.keep(places[0], report, choice)
    sys.stdout.write(report_format(arguments.format).render(report).rstrip("\n") + "\n")
    if arguments.html:
        from tracelens_dashboard.export import report as page
        from tracelens_dashboard.runs.store import Store

        page.write(Store.of(trace, report), arguments.html)
    return 0
