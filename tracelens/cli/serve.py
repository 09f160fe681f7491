"""`tracelens serve`: the dashboard on recorded runs, in the browser."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from tracelens.cli import runs
from tracelens.memory import keep_freed_memory

if TYPE_CHECKING:
    import argparse

    from tracelens_dashboard.runs.catalog import Runs
    from tracelens_dashboard.runs.store import Store

NAME: Final = "serve"
HELP: Final = "show recorded runs in the browser, to whoever has the address that is printed"
EXAMPLES: Final = """\
  tracelens serve traces/today
  tracelens serve traces/today --port 8060
  tracelens serve traces/today --host 0.0.0.0    # to the network
  tracelens serve events.parquet
  tracelens serve s3://bucket/run     # fetched first (docs/remote.md)
  tracelens serve traces              # a folder of runs: a list of them first
  tracelens serve traces/monday traces/today
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `serve`."""
    runs.add_trace(parser, also="a folder that holds runs; several of them", nargs="+")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; 0.0.0.0 shows the run to the network",
    )
    runs.add_keeping(parser)
    parser.add_argument("--port", type=int, default=8050, help="0 picks a free one")
    parser.add_argument(
        "--no-token",
        action="store_true",
        help="ask visitors for no token: whoever has an account on this machine can see the run",
    )


def run(arguments: argparse.Namespace) -> int:
    """Open, analyze and serve until Ctrl-C or SIGTERM, which are normal ends."""
    runs.import_libraries()  # before there are threads, which would each take room of their own
    keep_freed_memory()
    from tracelens_dashboard.app.server import serve

    token = not arguments.no_token
    serve(_open_runs(arguments), host=arguments.host, port=arguments.port, token=token)
    return 0


def _open_runs(arguments: argparse.Namespace) -> Runs | Store:
    """Open a single run now; of several, each when it is asked for."""
    from tracelens.load import list_runs
    from tracelens.lod.opening import MEMORY
    from tracelens_dashboard.runs.catalog import Runs
    from tracelens_dashboard.runs.store import Store

    is_renamed = runs.has_options(arguments)  # then no index can be of it
    paths = runs.match_paths(arguments.trace)
    run_paths = [run for path in paths for run in list_runs(path)] or paths
    if len(run_paths) > 1:
        # One of them must not end the server, which shows others meanwhile.
        read = partial(runs.open_path, arguments, memory=MEMORY, contained=True)
        return Runs(paths, read, indexed=not is_renamed)

    arguments.trace = run_paths[0]
    return Store.open(
        None if is_renamed else run_paths[0],
        lambda: runs.open_trace(arguments, MEMORY),
        runs.show_progress,
    )
