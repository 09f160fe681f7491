"""`tracelens convert`: a run, or some ranks and steps of it, for other programs to open."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens.cli.opening import add_trace, open_trace
from tracelens.errors import InvalidArgument
from tracelens.schema.vocabulary import MOST_RANKS

if TYPE_CHECKING:
    import argparse

    from tracelens.exports.selection import Selection
    from tracelens.model.trace import Trace

NAME: Final = "convert"
HELP: Final = "write a run, or some ranks and steps of it, for other programs (ui.perfetto.dev)"
EXAMPLES: Final = """\
  tracelens convert traces/today --to perfetto
  tracelens convert traces/today --to perfetto --ranks 0-3,41 --steps 200-260 --out late.json
"""
FORMATS: Final = ("perfetto",)
_PART: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convert`."""
    add_trace(parser)
    parser.add_argument("--to", choices=FORMATS, required=True, help="format to write")
    parser.add_argument("--ranks", help="worker ranks, such as 0-3,41 (default: all, and shards)")
    parser.add_argument("--steps", help="first and last step, such as 200-260 (default: all)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: RUN.perfetto.json")


def run(arguments: argparse.Namespace) -> int:
    """Select, report the size, write."""
    from tracelens.exports import EXPORTS
    from tracelens.exports.selection import of_trace
    from tracelens.model.fmt import count, size

    ranks = _numbers(arguments.ranks, "--ranks") if arguments.ranks else None
    steps = _numbers(arguments.steps, "--steps") if arguments.steps else None
    trace = open_trace(arguments)
    chosen = of_trace(trace, ranks, _window(trace, steps) if steps else None)
    _check(chosen, arguments.ranks)
    export = EXPORTS[arguments.to]
    amount = export.size(chosen)
    amount_text = f"{count(amount.events, 'event')}, about {size(amount.nbytes)}"
    if amount.events > export.MOST_EVENTS:
        raise InvalidArgument(
            f"That would be {amount_text}, and viewers open {export.MOST_EVENTS:,} events at most: "
            "choose fewer with --ranks and --steps."
        )
    sys.stdout.write(f"{amount_text}\n")
    out = arguments.out or Path(chosen.run + export.SUFFIX)
    try:
        with out.open("w", encoding="utf-8") as file:
            file.writelines(export.write(chosen))
    except OSError as error:
        raise InvalidArgument(f"'{out}' cannot be written ({error}).") from error
    sys.stdout.write(f"wrote {out}; open it at https://ui.perfetto.dev (it stays in the browser)\n")
    return 0


def _check(chosen: Selection, asked: str | None) -> None:
    if not chosen.owners:
        raise InvalidArgument(f"--ranks {asked}: none of them is a worker of this run.")


def _window(trace: Trace, steps: frozenset[int]) -> tuple[int, int]:
    """Return the window from the first rank's begin of the first step to the last one's end."""
    import polars as pl

    inside = trace.steps.filter(pl.col("step").is_between(min(steps), max(steps)))
    start, end = inside["start_ns"].min(), inside["end_ns"].max()
    if not isinstance(start, int) or not isinstance(end, int):
        raise InvalidArgument(f"--steps: this run has no step from {min(steps)} to {max(steps)}.")
    return start, end


def _numbers(text: str, option: str) -> frozenset[int]:
    """Read ``0-3,41``."""
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < first + MOST_RANKS:
            raise InvalidArgument(f"{option} {text}: expected numbers such as 3, 0-7 or 0-3,41.")
        found.update(range(first, last + 1))
    return frozenset(found)
