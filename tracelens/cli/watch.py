"""`tracelens watch`: look at a running job: its pace, its ranks, and whether it stands still."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens.errors import InvalidArgument

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from tracelens.watch.metrics import Metrics
    from tracelens.watch.watcher import News, Watcher

NAME: Final = "watch"
HELP: Final = "look at a running job: pace, ranks, stalls and how processes end"
EXAMPLES: Final = """\
  tracelens watch traces/today
  tracelens watch traces/today --json | jq 'select(.kind == "stalled")'
  tracelens watch traces/today --on-alert 'mail -s "training" me@example.org'
  tracelens watch traces/today --for 60    # exit code 1 if a rank has failed or the job hangs
"""
_LOOK_EVERY_S: Final = 1.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `watch`."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="trace folder of the job")
    parser.add_argument("--json", action="store_true", help="a JSON object a line (docs/watch.md)")
    parser.add_argument(
        "--for", type=float, dest="seconds", metavar="SECONDS", help="end after so long"
    )
    parser.add_argument(
        "--on-alert",
        metavar="COMMAND",
        help="run this shell command for each alarm, which it gets as JSON on its standard input",
    )
    parser.add_argument(
        "--prometheus", metavar="HOST:PORT", help="serve what is known as metrics for Prometheus"
    )


def run(arguments: argparse.Namespace) -> int:
    """Watch until the job has ended, or for as long as asked; return 1 if it failed or hangs."""
    from tracelens.watch.alerts import AlertCommand
    from tracelens.watch.output import output_for
    from tracelens.watch.watcher import Watcher

    if arguments.folder.exists() and not arguments.folder.is_dir():
        raise InvalidArgument(f"'{arguments.folder}' is no folder: give the trace folder of a job.")
    if not arguments.folder.exists():
        sys.stderr.write(
            f"tracelens: '{arguments.folder}' does not exist yet; waiting for a job that records there\n"
        )
    command = AlertCommand(arguments.on_alert) if arguments.on_alert else None
    metrics = None
    if arguments.prometheus:
        from tracelens.watch.metrics import Metrics

        metrics = Metrics(arguments.prometheus)
    watcher = Watcher(arguments.folder, command)
    with output_for(sys.stdout, as_json=arguments.json) as show:
        try:
            _watch(watcher, show, arguments.seconds, metrics)
        finally:
            show(watcher, watcher.close())
            if metrics is not None:
                metrics.close()
    return watcher.exit_code


def _watch(
    watcher: Watcher,
    show: Callable[[Watcher, list[News]], None],
    seconds: float | None,
    metrics: Metrics | None,
) -> None:
    """Look once a second, at moments that do not drift."""
    begin_s = time.monotonic()
    look_s = begin_s
    while True:
        news = watcher.look()
        show(watcher, news)
        if metrics is not None:
            metrics.update(watcher, news)
        if watcher.is_over or (seconds is not None and look_s - begin_s >= seconds):
            return
        look_s = max(look_s + _LOOK_EVERY_S, time.monotonic())
        watcher.wait(max(look_s - time.monotonic(), 0))
