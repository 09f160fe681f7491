"""`tracelens scaling`: how runs of several sizes scale, what loses efficiency, and a forecast."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from tracelens.cli import runs

NAME: Final = "scaling"
HELP: Final = (
    "say how runs of several sizes scale, which factor loses efficiency, and forecast more"
)
EXAMPLES: Final = """\
  tracelens scaling traces/2-ranks traces/4-ranks traces/8-ranks
  tracelens scaling 'traces/weak-*' --forecast 64 128    # at least 4 sizes
  tracelens scaling 'traces/ps-*' 'traces/allreduce-*'    # both systems, side by side
  tracelens scaling 'traces/servers-*' --by shards
"""
MOST_WORKERS: Final = 1 << 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `scaling`."""
    runs.add_runs(
        parser,
        "runs of one program on different numbers of workers: trace folders, tables of spans, "
        "addresses, patterns; several of a size show how far equal runs differ",
    )
    parser.add_argument(
        "--by", choices=("workers", "shards"), help="what runs differ in (if not given: workers)"
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--weak", dest="kind", action="store_const", const="weak", help="each rank keeps its work"
    )
    kind.add_argument(
        "--strong",
        dest="kind",
        action="store_const",
        const="strong",
        help="all ranks share the same work (if neither is given: as their computation grows)",
    )
    parser.add_argument(
        "--forecast", type=_workers, nargs="+", default=[], metavar="N", help="numbers of workers"
    )
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text")


def _workers(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of workers, such as 128")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Measure each run, compare and print."""
    runs.import_libraries()
    from tracelens.replay.whatif import Replay
    from tracelens.scaling import Point, curves
    from tracelens.scaling.formats import SCALINGS

    points, paths = [], {}
    for path, run in runs.measure_runs(arguments, "runs of at least two sizes"):
        name = runs.write_name(path)
        points.append(Point.from_run(run, name))
        paths[name] = path

    def replay(point: Point) -> Replay:
        return Replay.from_trace(runs.open_path(arguments, paths[point.name]))

    scaling = curves(
        points, by=arguments.by, kind=arguments.kind, at=arguments.forecast, replay=replay
    )
    sys.stdout.write(SCALINGS[arguments.format](scaling))
    return 0
