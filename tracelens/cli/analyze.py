"""`tracelens analyze`: what costs time, why, and what fixing it would save."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens.cli import runs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tracelens.model.choice import Choice
    from tracelens.model.result import Report
    from tracelens.model.trace import Trace

_MAX_SPANS_INDEXED: Final = 1 << 25
_MAX_RANKS_INDEXED: Final = 1 << 10
NAME: Final = "analyze"
HELP: Final = "report what costs time in a recorded run, findings first"
EXAMPLES: Final = """\
  tracelens analyze traces/today
  tracelens analyze traces/today --full    # with all tables
  tracelens analyze traces/today --format json > report.json
  tracelens analyze traces/today --html report.html    # one file with charts, works offline
  tracelens analyze traces/today --format prometheus > tracelens.prom
  tracelens analyze traces/today --format otlp > today.jsonl    # metrics for OpenTelemetry
  tracelens analyze traces/today --tables today    # findings and all result tables as CSV
  tracelens analyze traces/today --ranks 0-7,12 --steps 200-260    # reads only what that needs
  tracelens analyze traces/today --time 10s-70s    # from the run's begin: the steps in that time
  tracelens analyze /nodes/*/today    # folders of one run, such as of node-local disks
  tracelens analyze s3://bucket/run   # or https://host/events.parquet (docs/remote.md)
  tracelens analyze profiles/         # what torch.profiler exports, a file a rank (docs/kineto.md)
  tracelens analyze events.parquet
  tracelens analyze events.csv --map worker_no=rank --map t0=start_us --map kind:predict=forward
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `analyze`."""
    runs.add_trace(parser, also="several folders of one run, or a pattern of them", nargs="+")
    runs.add_choice(parser, time="the steps that reach into it")
    runs.add_executor(parser)
    runs.add_memory(parser)
    parser.add_argument(
        "--again", action="store_true", help="explain it anew, though its report was kept"
    )
    runs.add_keeping(parser)
    parser.add_argument(
        "--format",
        choices=("text", "json", "markdown", "html", "prometheus", "otlp"),
        default="text",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--full", action="store_true", help="as text: with all tables and notes")
    length.add_argument("--verdict", action="store_true", help="as text: only the verdict")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="also write a report with charts, in one file"
    )
    parser.add_argument(
        "--tables", type=Path, metavar="DIR", help="also write findings and result tables as CSV"
    )


def run(arguments: argparse.Namespace) -> int:
    """Explain the run, or find its kept report, and print it; keep what later verbs need."""
    runs.import_libraries()
    from tracelens.distil import kept_report

    paths, choice = runs.match_paths(arguments.trace), runs.parse_choice(arguments)
    # A recording that ends, of which the verdict is asked, still holds what it recorded.
    keeps_report = len(paths) == 1 and not arguments.verdict
    report, trace = _find_kept_report(arguments, paths, choice), None
    if report is None:
        trace, report = _explain(arguments, paths, choice)
        if keeps_report:
            kept_report.keep(paths[0], report, choice)
    sys.stdout.write(_write_report(report, arguments).rstrip("\n") + "\n")
    sys.stdout.flush()
    if trace and keeps_report and choice.is_whole_run:
        _keep_index(paths[0], trace, report, again=arguments.again)
    if arguments.html:
        _write_page(arguments.html, paths[0], trace, report)
    if arguments.tables:
        report.save_tables(arguments.tables)
    return 0


def _write_report(report: Report, arguments: argparse.Namespace) -> str:
    """Return the report as it was asked for."""
    from tracelens.reports import report_format

    if arguments.format != "text":
        return report_format(arguments.format).render(report)
    from tracelens.reports import to_text

    if arguments.verdict:
        return to_text.render(report, length="verdict")
    return to_text.render(report, length="full" if arguments.full else "brief")


def _find_kept_report(
    arguments: argparse.Namespace, paths: Sequence[Path], choice: Choice
) -> Report | None:
    """Return the report that was kept; for a page only if there is an index, too; else None."""
    from tracelens.distil import kept_report

    must_explain = arguments.again or arguments.tables  # a kept report has a part of the tables
    if must_explain or len(paths) > 1 or runs.has_options(arguments):
        return None
    report = kept_report.find(paths[0], choice)
    if report and arguments.html:
        from tracelens.lod import opening

        return report if choice.is_whole_run and opening.open_indexed(paths[0]) else None
    return report


def _explain(
    arguments: argparse.Namespace, paths: Sequence[Path], choice: Choice
) -> tuple[Trace, Report]:
    """Open and analyze the run; return both the trace and its report."""
    from tracelens.executors import open_executor

    memory = runs.parse_memory(arguments)  # bytes
    with open_executor(arguments.executor) as executor:
        trace = runs.open_joined(arguments, paths, executor, choice, memory)
        from tracelens.verdicts.report import analyze

        with runs.show_progress("analyzing") as on_progress:
            return trace, analyze(trace, on_progress, executor, memory)


def _keep_index(path: Path, trace: Trace, report: Report, *, again: bool) -> None:
    """Keep an index as well, except of a very large run; `again` replaces an existing one."""
    from tracelens.lod import index, opening

    if again:
        index.remove(path)
    summary = report.summary
    if summary.spans <= _MAX_SPANS_INDEXED and summary.ranks_seen <= _MAX_RANKS_INDEXED:
        opening.write_index(path, trace, report, runs.show_progress)


def _write_page(file: Path, path: Path, trace: Trace | None, report: Report) -> None:
    """Write the page of a run; without its trace, from its index."""
    from tracelens.lod import opening
    from tracelens_dashboard.export import report as page
    from tracelens_dashboard.runs.store import Store

    if trace:
        store = Store.from_trace(trace, report)
    else:
        run = opening.open_indexed(path)
        assert run
        store = Store(replace(run, report=report), path)
    page.write(store, file)
