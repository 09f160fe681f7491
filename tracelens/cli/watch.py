"""`tracelens watch`: look at a running job: its pace, its ranks, and whether it stands still."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens.errors import InvalidArgument
from tracelens.model.durations import parse_duration

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
  tracelens watch traces/today --for 60s   # exit code 1 if a rank has failed or the job hangs
"""
_LOOK_EVERY_S: Final = 1.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `watch`."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="trace folder of the job")
    parser.add_argument("--json", action="store_true", help="a JSON object a line (docs/watch.md)")
    parser.add_argument(
        "--for", dest="duration", metavar="TIME", help="end after a time, such as 60s or 5m"
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

    duration_ns = (
        None if arguments.duration is None else parse_duration(arguments.duration, "--for")
    )
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
            is_shown_live = arguments.json or sys.stdout.isatty()
            _watch(watcher, show, duration_ns, metrics, is_shown_live=is_shown_live)
        finally:
            show(watcher, [*watcher.close(), *watcher.conclude()])
            if metrics is not None:
                metrics.close()
    return watcher.exit_code


def _watch(
    watcher: Watcher,
    show: Callable[[Watcher, list[News]], None],
    duration_ns: int | None,
    metrics: Metrics | None,
    *,
    is_shown_live: bool,
) -> None:
    """Look once a second, at moments that do not drift.

    Args:
        watcher: The watch.
        show: Shows a look.
        duration_ns: For how long to watch, None for as long as the job runs.
        metrics: Where each look is counted.
        is_shown_live: Each look is shown, so none is left out while all ranks go on.
    """
    look_s = time.monotonic()
    end_s = math.inf if duration_ns is None else look_s + duration_ns / 1e9
    while True:
        is_needed = is_shown_live or look_s >= end_s
        news = watcher.look() if is_needed else watcher.look_if_needed()
        show(watcher, news)
        if metrics is not None:
            metrics.update(watcher, news)
        if watcher.is_over or look_s >= end_s:
            return
        look_s = max(look_s + _LOOK_EVERY_S, time.monotonic())
        watcher.wait(max(look_s - time.monotonic(), 0))
