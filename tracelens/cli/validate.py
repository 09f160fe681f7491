"""`tracelens validate`: whether a trace, a table or a report keeps to its format."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracelens.cli import runs
from tracelens.errors import TraceNotFound, UnusableInput
from tracelens.schema.gate import open_regular, read_contents
from tracelens.schema.json_text import loads

if TYPE_CHECKING:
    import argparse

NAME: Final = "validate"
HELP: Final = (
    "check a trace, a table of spans or a report against its format, a line for each problem"
)
EXAMPLES: Final = """\
  tracelens validate traces/today
  tracelens validate events.parquet
  tracelens validate report.json
  tracelens validate traces/damaged --repair traces/repaired    # a copy of all that can be used
"""
_MARK: Final = "tracelens.report/"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `validate`."""
    runs.add_trace(parser, also="a report (.json)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--format", choices=("text", "json", "markdown"), default="text")
    form.add_argument(
        "--repair",
        type=Path,
        metavar="OUT",
        help="copy all that can be used of a trace to a new folder",
    )


def run(arguments: argparse.Namespace) -> int:
    """Check and print; exit code 1 if there is a problem."""
    given_path = arguments.trace
    arguments.trace = runs.fetch_copy(given_path)
    if arguments.repair:
        return _repair(arguments)
    report = _read_report(arguments.trace)
    if report is None:
        noun, problems = _check_trace(arguments)
    else:
        from tracelens.reports.schema import find_problems

        noun, problems = "report", find_problems(report)
    sys.stdout.write(_write_problems(arguments.format, runs.write_name(given_path), noun, problems))
    return 1 if problems else 0


def _repair(arguments: argparse.Namespace) -> int:
    """Write the copy, and say what is in it and what is not."""
    from tracelens.exports.repair import repair
    from tracelens.model.fmt import count
    from tracelens.model.inert import clean

    copied = repair(arguments.trace, arguments.repair)
    for sentence in copied.sentences:
        sys.stdout.write(f"{clean(sentence)}\n")
    name, events = runs.write_name(arguments.repair), count(copied.event_count, "event")
    whole, rewritten = (
        count(copied.whole_file_count, "file"),
        count(copied.partial_file_count, "file"),
    )
    sys.stdout.write(f"wrote {name}: {events}, {whole} as recorded, {rewritten} written anew\n")
    return 0


def _check_trace(arguments: argparse.Namespace) -> tuple[str, list[str]]:
    """Return the kind of input (a noun), and its problems, a sentence each."""
    from tracelens.readers.native.validation import list_problems
    from tracelens.readers.table.reader import is_table

    noun = "table of spans" if is_table(arguments.trace) else "trace"
    try:
        return noun, list_problems(runs.open_trace(arguments))
    except TraceNotFound:
        raise
    except UnusableInput as error:
        return noun, [str(error)]


def _read_report(path: Path) -> Any:
    """Return the content of a JSON file if it is a report of TraceLens, else None."""
    try:
        with open_regular(path) as file:
            if not file.read(1 << 10).lstrip().startswith(b"{"):
                return None
        document = loads(read_contents(path))
    except (OSError, ValueError, UnusableInput):
        return None
    return document if str(document.get("format")).startswith(_MARK) else None


def _write_problems(form: str, name: str, noun: str, problems: list[str]) -> str:
    if form == "json":
        return json.dumps({"path": name, "what": noun, "problems": problems}, indent=2) + "\n"
    from tracelens.model.inert import clean

    lines = [f"{'- ' if form == 'markdown' else ''}{clean(problem)}" for problem in problems]
    return "\n".join(lines or [f"{name}: no problem in this {noun}."]) + "\n"
