"""`tracelens sweep`: simulate a scenario with every combination of some values, and map the outcome."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens.cli import runs
from tracelens.errors import InvalidArgument, UnusableInput
from tracelens.model.fmt import shown_name

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tracelens.scaling.sweep import Axis, Cell

NAME: Final = "sweep"
HELP: Final = "simulate a scenario with every combination of some values, and show a heat map"
EXAMPLES: Final = """\
  tracelens sweep resnet50 --over workers=8,16,32 --over ps=1,2,4,8
  tracelens sweep nt3 --over workers=2,8,32 --over batch=16,32,64 --show efficiency
  tracelens sweep scenario.toml --over network.latency_us=5,50 --html map.html --save runs.parquet
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `sweep`."""
    runs.add_scenario(parser, "as of simulate, in all")
    parser.add_argument(
        "--over",
        action="append",
        required=True,
        metavar="NAME=VALUE,VALUE...",
        help="what to vary: workers, ps (servers), batch (samples of a worker, with its compute), "
        "or TABLE.NAME of the scenario; again for each; the last one is across",
    )
    parser.add_argument(
        "--show",
        choices=("throughput", "step", "efficiency"),
        default="throughput",
        help="what to map",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the map as a page, too")
    parser.add_argument(
        "--save", type=Path, metavar="FILE.parquet", help="write all numbers as a table, too"
    )
    runs.add_executor(parser)
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(arguments: argparse.Namespace) -> int:
    """Simulate all, measure, and print."""
    runs.import_libraries()
    from tracelens.executors import open_executor
    from tracelens.scaling import heat_maps
    from tracelens.scaling.sweep import make_scenarios, measure_cells, parse_axis

    axes = [parse_axis(text) for text in arguments.over]
    scenarios = make_scenarios(arguments.scenario, axes, arguments.set)
    _check_outputs(arguments)
    executor_spec = arguments.executor or f"processes:{min(len(scenarios), os.cpu_count() or 1)}"
    measured_cells: list[Cell] = []
    with open_executor(executor_spec) as executor, runs.show_progress("simulating") as on_progress:
        for cell in measure_cells(scenarios, executor):
            measured_cells.append(cell)
            on_progress(len(measured_cells), len(scenarios))
    if arguments.html:
        name = shown_name(arguments.scenario)
        page = heat_maps.to_html(measured_cells, axes, arguments.show, name)
        _write(arguments.html, page.encode())
    if arguments.save:
        _save(arguments.save, measured_cells, axes)
    if arguments.format == "json":
        sys.stdout.write(heat_maps.to_json(measured_cells, axes))
    else:
        sys.stdout.write(heat_maps.to_text(measured_cells, axes, arguments.show))
    return 0


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Refuse files that could not be written, before anything is simulated."""
    for path in filter(None, (arguments.html, arguments.save)):
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise InvalidArgument(
                f"'{shown_name(path)}' cannot be written: expected a file in a folder that exists."
            )


def _save(path: Path, finished_cells: Sequence[Cell], axes: Sequence[Axis]) -> None:
    import io

    import polars as pl

    buffer = io.BytesIO()
    table = pl.DataFrame([cell.make_row(axes) for cell in finished_cells], strict=False)
    table.write_parquet(buffer)
    _write(path, buffer.getvalue())


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UnusableInput(f"'{shown_name(path)}' cannot be written: {error.strerror}.") from None
