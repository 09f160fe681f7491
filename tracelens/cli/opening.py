"""What verbs that read a run share: naming it on the command line, and opening it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens.errors import InvalidArgument

if TYPE_CHECKING:
    import argparse

    from tracelens.trace import Trace

__all__ = ["add_trace", "open_trace"]

WHAT: Final = "trace folder, or a table of spans (.arrow, .feather, .parquet, .csv)"
MAP: Final = (
    "what a table calls something, and what TraceLens calls it; again for each: a column "
    "(worker_no=rank, t0=start_us) or a word in one (kind:predict=forward, role:chief2=worker)"
)


def add_trace(parser: argparse.ArgumentParser, *, also: str = "") -> None:
    """Add the run to read, and what only tables need; `also` says what else may stand there."""
    parser.add_argument("trace", type=Path, help=f"{WHAT}{also and ', or '}{also}")
    table = parser.add_argument_group("tables of spans")
    table.add_argument("--map", action="append", metavar="THEIRS=OURS", help=MAP)
    table.add_argument(
        "--one-clock", action="store_true", help="all times of the table come from one clock"
    )


def open_trace(arguments: argparse.Namespace) -> Trace:
    """Open what `add_trace` asked for, showing progress."""
    from tracelens.cli.progress import progress
    from tracelens.load import open as open_any

    renamed = dict(map(_pair, getattr(arguments, "map", None) or ()))
    one_clock = getattr(arguments, "one_clock", False)
    with progress("reading", then="aligning clocks, matching collectives") as tell:
        return open_any(arguments.trace, tell, map=renamed, one_clock=one_clock)


def _pair(text: str) -> tuple[str, str]:
    theirs, _, ours = text.rpartition("=")
    if not theirs or not ours:
        raise InvalidArgument(
            f"--map {text}: expected THEIRS=OURS, such as worker_no=rank or kind:predict=forward."
        )
    return theirs, ours
