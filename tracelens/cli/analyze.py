"""`tracelens analyze`: what costs time, why, and what fixing it would save."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens.cli.opening import add_executor, add_trace, import_numpy, open_trace, progress

if TYPE_CHECKING:
    import argparse

NAME: Final = "analyze"
HELP: Final = "report what costs time in a recorded run, findings first"
EXAMPLES: Final = """\
  tracelens analyze traces/today
  tracelens analyze traces/today --format json > report.json
  tracelens analyze traces/today --html report.html    # one file with charts, works offline
  tracelens analyze events.parquet
  tracelens analyze events.csv --map worker_no=rank --map t0=start_us --map kind:predict=forward
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `analyze`."""
    add_trace(parser)
    add_executor(parser)
    parser.add_argument(
        "--again", action="store_true", help="explain it anew, though its report was kept"
    )
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="also write a report with charts, in one file"
    )


def run(arguments: argparse.Namespace) -> int:
    """Open, analyze, print."""
    import_numpy()
    from tracelens.distil import kept_report
    from tracelens.parallel import opened
    from tracelens.reports import report_format

    again = arguments.again or arguments.html or arguments.map or arguments.one_clock
    report = None if again else kept_report.find(arguments.trace)
    if report is None:
        with opened(arguments.executor) as executor:
            trace = open_trace(arguments, executor)
            from tracelens.analyses import analyze

            with progress("analyzing") as on_progress:
                report = analyze(trace, on_progress, executor)
        kept_report.keep(arguments.trace, report)
    sys.stdout.write(report_format(arguments.format).render(report).rstrip("\n") + "\n")
    if arguments.html:
        from tracelens_dashboard.export import report as page
        from tracelens_dashboard.runs.store import Store

        page.write(Store.of(trace, report), arguments.html)
    return 0
