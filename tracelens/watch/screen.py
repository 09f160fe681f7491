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

from tracelens.model import fmt
from tracelens.model.inert import clean
from tracelens.watch.sentences import describe_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    from tracelens.watch.status import JobStatus, RankStatus
    from tracelens.watch.watcher import News, Watcher

__all__ = ["draw", "drawing"]

MAX_NEWS_SHOWN: Final = 12  # lines of news: no more are shown under the table [policy]
MAX_RANKS_SHOWN: Final = 32  # ranks: of more the late ones are shown [policy]


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
    headline = Text(describe_status(status), "bold red" if watcher.stall is not None else "bold")
    return Group(headline, _draw_ranks(watcher, status), *news_lines)


def _draw_ranks(watcher: Watcher, status: JobStatus) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("rank", "state", "step", "steps/s", "late", "is in", "since"):
        table.add_column(name, justify="right" if name in {"steps/s", "late", "since"} else "left")
    for name in ("communicator", "last completed", "open"):
        table.add_column(name)
    culprits = () if watcher.stall is None else watcher.stall.culprits
    for rank_status in _choose_ranks(status, culprits):
        style = "red" if rank_status.rank in culprits else "dim" if rank_status.is_over else ""
        table.add_row(
            *_describe_rank(rank_status, status.at_ns), *_describe_calls(rank_status), style=style
        )
    return table


def _choose_ranks(status: JobStatus, culprits: tuple[int, ...]) -> list[RankStatus]:
    """Return the ranks of the table: all, or of many the culprits, those that ended and the latest."""
    ranks = sorted(
        status.ranks,
        key=lambda rank_status: (
            rank_status.rank not in culprits,
            not rank_status.is_over,
            -(rank_status.delay_ns or 0.0),
        ),
    )
    return sorted(ranks[:MAX_RANKS_SHOWN], key=lambda rank_status: rank_status.rank)


def _describe_rank(rank_status: RankStatus, now_ns: int) -> list[str]:
    since_text = (
        ""
        if rank_status.span_since_ns is None
        else fmt.duration(max(now_ns - rank_status.span_since_ns, 0))
    )
    return [
        str(rank_status.rank),
        "ended" if rank_status.is_over else rank_status.state or f"on {clean(rank_status.host)}",
        "" if rank_status.step is None else str(rank_status.step),
        "" if rank_status.steps_per_s is None else f"{rank_status.steps_per_s:.3g}",
        ""
        if rank_status.delay_ns is None or rank_status.delay_ns <= 0
        else fmt.duration(rank_status.delay_ns),
        "" if rank_status.span is None else clean(rank_status.span[1]),
        since_text,
    ]


def _describe_calls(rank_status: RankStatus) -> list[str]:
    """Return name, last completed and open call of each communicator, a line each in three cells."""
    names, completed, entered = [], [], []
    for group in rank_status.communicators:
        names.append(clean(group.name))
        completed.append("" if group.completed is None else "{} {}".format(*group.completed))
        is_open = group.entered is not None and group.entered != group.completed
        entered.append("{} {}".format(*group.entered) if is_open and group.entered else "")
    return ["\n".join(names), "\n".join(completed), "\n".join(entered)]
