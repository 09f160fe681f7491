"""`tracelens serve`: the dashboard on a recorded run, in the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracelens.cli.opening import add_trace, open_trace

if TYPE_CHECKING:
    import argparse

NAME: Final = "serve"
HELP: Final = "show a recorded run in the browser (to this machine; to a network by token)"
EXAMPLES: Final = """\
  tracelens serve traces/today
  tracelens serve traces/today --port 8060
  tracelens serve traces/today --host 0.0.0.0    # to the network: prints an address with a token
  tracelens serve events.parquet
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `serve`."""
    add_trace(parser)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; any but this machine's loopback asks visitors for a token",
    )
    parser.add_argument("--port", type=int, default=8050, help="0 picks a free one")


def run(arguments: argparse.Namespace) -> int:
    """Open, analyze and serve until Ctrl-C."""
    from tracelens.cli.progress import progress
    from tracelens_dashboard.server import serve
    from tracelens_dashboard.store import Store

    renamed = arguments.map or arguments.one_clock  # then no index can be of it
    path = None if renamed else arguments.trace
    store = Store.open(path, lambda: open_trace(arguments), progress)
    serve(store, host=arguments.host, port=arguments.port)
    return 0
