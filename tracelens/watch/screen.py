"""The watch on a terminal, drawn anew at each look: pace, ranks, communicators and the last news."""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tracelens.watch.rank_rows import COLUMNS, NUMERIC_COLUMNS, choose_ranks, describe_rank
from tracelens.watch.sentences import describe_stalled_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    from tracelens.watch.status import JobStatus
    from tracelens.watch.watcher import News, Watcher

__all__ = ["draw", "drawing"]

MAX_NEWS_SHOWN: Final = 12  # lines of news: no more are shown under the table [policy]


@contextmanager
def drawing(stream: TextIO) -> Iterator[Callable[[Watcher, list[News]], None]]:
    """Yield what draws a look on the terminal; the last picture stays there."""
    lines: deque[Text] = deque(maxlen=MAX_NEWS_SHOWN)
    console = Console(file=stream)
    with Live(console=console, auto_refresh=False) as live:

        def show(watcher: Watcher, news: list[News]) -> None:
            for item in news:
                style = "bold red" if item.kind in {"stalled", "exited"} and item.is_alarm else ""
                style = "bold red" if item.kind == "stalled" else style
                moment = time.strftime("%H:%M:%S")
                lines.extend(Text(f"{moment} {line}", style) for line in item.sentence.splitlines())
            live.update(draw(watcher, list(lines)), refresh=True)

        yield show


def draw(watcher: Watcher, news_lines: list[Text]) -> Group:
    """Return the picture of a look: a line of pace, a row for each rank, and the last news."""
    status = watcher.status
    if status is None or not status.ranks:
        return Group(Text("waiting for the first recorded process"), *news_lines)
    style = "bold" if watcher.stall is None else "bold red"
    headline = Text(describe_stalled_status(status, watcher.stall), style)
    return Group(headline, _draw_ranks(watcher, status), *news_lines)


def _draw_ranks(watcher: Watcher, status: JobStatus) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in NUMERIC_COLUMNS else "left")
    culprits = () if watcher.stall is None else watcher.stall.culprits
    for rank_status in choose_ranks(status, culprits):
        style = "red" if rank_status.rank in culprits else "dim" if rank_status.is_over else ""
        table.add_row(*describe_rank(rank_status, status.at_ns), style=style)
    return table
