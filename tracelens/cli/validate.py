"""`tracelens validate`: whether a trace, a table or a report keeps to its format."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracelens.cli.opening import add_trace, local, named, open_trace
from tracelens.errors import TraceNotFound, UnusableInput
from tracelens.schema.gate import contents, opened
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
    add_trace(parser, also="a report (.json)")
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
    place = arguments.trace
    arguments.trace = local(place)
    if arguments.repair:
        return _repair(arguments)
    report = _report(arguments.trace)
    if report is None:
        what, problems = _of_trace(arguments)
    else:
        from tracelens.reports.schema import problems as broken

        what, problems = "report", broken(report)
    sys.stdout.write(_written(arguments.format, named(place), what, problems))
    return 1 if problems else 0


def _repair(arguments: argparse.Namespace) -> int:
    """Write the copy, and say what is in it and what is not."""
    from tracelens.exports.repair import repair
    from tracelens.model.fmt import count
    from tracelens.model.inert import clean

    done = repair(arguments.trace, arguments.repair)
    for sentence in done.sentences:
        sys.stdout.write(f"{clean(sentence)}\n")
    files = f"{count(done.whole, 'file')} as recorded, {count(done.parts, 'file')} written anew"
    sys.stdout.write(f"wrote {named(arguments.repair)}: {count(done.events, 'event')}, {files}\n")
    return 0


def _of_trace(arguments: argparse.Namespace) -> tuple[str, list[str]]:
    from tracelens.readers.native.validation import problems
    from tracelens.readers.table.reader import is_table

    what = "table of spans" if is_table(arguments.trace) else "trace"
    try:
        return what, problems(open_trace(arguments))
    except TraceNotFound:
        raise
    except UnusableInput as error:
        return what, [str(error)]


def _report(path: Path) -> Any:
    """Return what a JSON file holds if it looks like a report of ours, else None."""
    try:
        with opened(path) as file:
            if not file.read(1 << 10).lstrip().startswith(b"{"):
                return None
        found = loads(contents(path))
    except (OSError, ValueError, UnusableInput):
        return None
    return found if str(found.get("format")).startswith(_MARK) else None


def _written(form: str, name: str, what: str, problems: list[str]) -> str:
    if form == "json":
        return json.dumps({"path": name, "what": what, "problems": problems}, indent=2) + "\n"
    from tracelens.model.inert import clean

    lines = [f"{'- ' if form == 'markdown' else ''}{clean(problem)}" for problem in problems]
    return "\n".join(lines or [f"{name}: no problem in this {what}."]) + "\n"
