"""`tracelens index`: make now what the dashboard would else make when it first shows a run."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tracelens.cli import runs
from tracelens.errors import InvalidArgument, TraceLensError
from tracelens.remote.address import parse_place

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
    parser.add_argument("trace", type=parse_place, help="trace folder, or its address")
    parser.add_argument("--again", action="store_true", help="make it anew, if there is one")
    runs.add_contained(parser)


def run(arguments: argparse.Namespace) -> int:
    """Make the index, unless an up-to-date one exists, and print where it is."""
    from tracelens.lod import index, opening

    arguments.trace = runs.fetch_copy(arguments.trace)
    if arguments.again:
        index.remove(arguments.trace)
    indexed_run = opening.open_indexed(arguments.trace) or _make_index(arguments)
    folder = indexed_run.scene.colour_pyramid.folder if indexed_run.scene.colour_pyramid else None
    if folder is None:
        raise InvalidArgument(
            f"There is no index of '{indexed_run.name}': one is made of a trace folder whose "
            "recording has ended, beside it or in the user's cache; 'tracelens serve' works "
            "without."
        )
    with runs.show_progress("refining the index") as on_progress:
        index.refine(folder, on_progress)
    with runs.show_progress("counting names") as on_progress:
        _count_names(indexed_run, arguments.trace, on_progress)
    sys.stdout.write(_describe(folder) + "\n")
    return 0


def _count_names(run: Run, trace: Path, on_progress: OnProgress) -> None:
    """Count what spans are called, for the search of the dashboard, which else does so itself.

    This alone reads events again after a report.
    """
    from tracelens.lod.tracks.names import Names
    from tracelens.lod.tracks.recorded_spans import RecordedSpans

    recorded, total = RecordedSpans(run, trace), run.workers.height + run.shards.height
    read_processes: list[int] = []

    def read_and_count(process: int) -> pl.DataFrame:
        read_processes.append(process)
        on_progress(len(read_processes), total)
        return recorded.read_events(process)

    with suppress(TraceLensError):  # a file cannot be read any more: the index serves without
        _ = Names.from_run(run, read_and_count).name_table


def _make_index(arguments: argparse.Namespace) -> Run:
    """Analyze the trace and return the run, whose index is made if it can have one."""
    from tracelens.lod import opening

    return opening.explain_trace(runs.open_trace(arguments, opening.MEMORY), runs.show_progress)


def _describe(folder: Path) -> str:
    from tracelens.lod import index

    bytes_by_part = index.count_bytes(folder)
    return (
        f"{folder}: {sum(bytes_by_part.values()) / 1e6:.1f} MB, of which levels of detail "
        f"{bytes_by_part['levels'] / 1e6:.1f} MB, spans {bytes_by_part['columns'] / 1e6:.1f} MB"
    )
