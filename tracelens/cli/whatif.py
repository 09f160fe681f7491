"""`tracelens whatif`: how long a run's steps would be if something were different."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Final

from tracelens.cli.opening import add_trace, open_trace

if TYPE_CHECKING:
    import argparse

NAME: Final = "whatif"
HELP: Final = "replay a run with something changed: how long its steps would be"
EXAMPLES: Final = """\
  tracelens whatif traces/today --what rank:3=median    # rank 3 as fast as the others
  tracelens whatif traces/today --what phase:data=0 --what 'bandwidth*2'    # both at once
  tracelens whatif traces/today --what all    # every single edit, the largest saving first
  tracelens whatif traces/today --what buckets=100MB --format json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `whatif`."""
    add_trace(parser)
    parser.add_argument(
        "--what",
        action="append",
        required=True,
        metavar="EDIT",
        help="what is different (docs/whatif.md), again for several at once: rank:R=median, "
        "phase:P=0, bandwidth*F, latency/F, message_cost/F, buckets=SIZE, overlap=off ...; or all",
    )
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text")


def run(arguments: argparse.Namespace) -> int:
    """Open, replay, print."""
    trace = open_trace(arguments)
    from tracelens.replay.whatif import whatif
    from tracelens.reports import to_whatif

    found = whatif(trace, *arguments.what)
    if arguments.format == "json":
        sys.stdout.write(json.dumps(found.to_dict(), indent=2) + "\n")
    else:
        write = to_whatif.markdown if arguments.format == "markdown" else to_whatif.text
        sys.stdout.write(write(found))
    return 0
