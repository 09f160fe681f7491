"""`tracelens index`: make now what the dashboard would else make when it first shows a run."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tracelens.cli.opening import local, open_trace
from tracelens.errors import InvalidArgument, TraceLensError
from tracelens.remote.address import place

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    import polars as pl

    from tracelens.lod.opening import OnProgress
    from tracelens.lod.run_data import Run

NAME: Final = "index"
HELP: Final = "make the index of a recorded run, with which the dashboard opens it at once"
EXAMPLES: Final = """\
  tracelens index traces/today
  tracelens index traces/today --again    # as after a change of the analyses
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `index`."""
    parser.add_argument("trace", type=place, help="trace folder, or its address")
    parser.add_argument("--again", action="store_true", help="make it anew, if there is one")


def run(arguments: argparse.Namespace) -> int:
    """Make the index, unless an up-to-date one exists, and print where it is."""
    from tracelens.cli.opening import progress
    from tracelens.lod import index, opening

    arguments.trace = local(arguments.trace)
    if arguments.again:
        index.remove(arguments.trace)
    made = opening.indexed(arguments.trace) or _explained(arguments)
    folder = made.scene.pyramid.folder if made.scene.pyramid else None
    if folder is None:
        raise InvalidArgument(
            f"There is no index of '{made.name}': one is made of a trace folder whose recording has "
            "ended, beside it or in the user's cache; 'tracelens serve' works without."
        )
    with progress("refining the index") as on_progress:
        index.refine(folder, on_progress)
    with progress("counting names") as on_progress:
        _count_names(made, arguments.trace, on_progress)
    sys.stdout.write(_described(folder) + "\n")
    return 0


def _count_names(run: Run, trace: Path, on_progress: OnProgress) -> None:
    """Count what spans are called, for the search of the dashboard; it does so itself where not.

    This alone reads events again after a report.
    """
    from tracelens.lod.tracks.names import Names
    from tracelens.lod.tracks.recorded_spans import RecordedSpans

    recorded, total = RecordedSpans(run, trace), run.workers.height + run.shards.height
    read: list[int] = []

    def counted(process: int) -> pl.DataFrame:
        read.append(process)
        on_progress(len(read), total)
        return recorded.read(process)

    with suppress(TraceLensError):  # a file cannot be read any more: the index serves without
        _ = Names.from_run(run, counted).table


def _explained(arguments: argparse.Namespace) -> Run:
    from tracelens.cli.opening import progress
    from tracelens.lod import opening

    return opening.explained(open_trace(arguments, opening.MEMORY), progress)


def _described(folder: Path) -> str:
    from tracelens.lod import index

    sizes = index.size(folder)
    return (
        f"{folder}: {sum(sizes.values()) / 1e6:.1f} MB, of which levels of detail "
        f"{sizes['levels'] / 1e6:.1f} MB, spans {sizes['columns'] / 1e6:.1f} MB"
    )
