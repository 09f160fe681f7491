"""`tracelens simulate`: write the trace of a run that never happened, from a scenario."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens.cli import runs
from tracelens.errors import InvalidArgument

if TYPE_CHECKING:
    import argparse

NAME: Final = "simulate"
HELP: Final = "simulate a run from a scenario, and write its trace"
EXAMPLES: Final = """\
  tracelens simulate scenario.toml --out traces/simulated
  tracelens simulate resnet50 --set run.workers=128 --set servers.shards=32 --out traces/128-32
  tracelens simulate nt3 --set network.gbytes_per_s=0.6 --out traces/slow-network
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `simulate`."""
    runs.add_scenario(
        parser, "what to set otherwise than the file, such as run.workers=128; again for each"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the new trace folder"
    )
    runs.add_limit(parser)


def run(arguments: argparse.Namespace) -> int:
    """Simulate, write, and print how large it is."""
    runs.import_libraries()
    from tracelens.model import fmt
    from tracelens.simulator import scenario_file, synthetic

    scenario = scenario_file.load(arguments.scenario, arguments.set)
    if arguments.out.exists() and (not arguments.out.is_dir() or any(arguments.out.iterdir())):
        raise InvalidArgument(
            f"'{fmt.shown_name(arguments.out)}' exists and is not empty: name a new folder with --out."
        )
    synthetic.write(scenario, arguments.out)
    counts = [fmt.count(scenario.ranks, "worker"), fmt.count(scenario.steps, "step")]
    if scenario.shards:
        counts.insert(1, fmt.count(scenario.shards, "parameter server"))
    sys.stdout.write(f"Simulated {', '.join(counts)}: {fmt.shown_name(arguments.out)}\n")
    return 0
