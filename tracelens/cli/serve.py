"""`tracelens serve`: the dashboard on a recorded run, in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

NAME: Final = "serve"
HELP: Final = "show a recorded run in the browser (on this machine only)"
EXAMPLES: Final = """\
  tracelens serve traces/today
  tracelens serve traces/today --port 8060
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `serve`."""
    parser.add_argument("trace", type=Path, help="trace folder")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (loopback only)")
    parser.add_argument("--port", type=int, default=8050, help="0 picks a free one")


def run(arguments: argparse.Namespace) -> int:
    """Open, analyze and serve until Ctrl-C."""
    from tracelens.cli.progress import progress
    from tracelens.load import open as open_trace
    from tracelens_dashboard.server import serve

    with progress("reading") as tell:
        trace = open_trace(arguments.trace, progress=tell)
    serve(trace, host=arguments.host, port=arguments.port)
    return 0
