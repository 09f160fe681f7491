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
            for one in news:
                style = "bold red" if one.kind in {"stalled", "gone"} and one.is_alarm else ""
                style = "bold red" if one.kind == "stalled" else style
                moment = time.strftime("%H:%M:%S")
                lines.extend(Text(f"{moment} {line}", style) for line in one.sentence.splitlines())
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
    for one in _choose_ranks(status, culprits):
        style = "red" if one.rank in culprits else "dim" if one.is_over else ""
        table.add_row(*_describe_rank(one, status.at_ns), *_describe_calls(one), style=style)
    return table


def _choose_ranks(status: JobStatus, culprits: tuple[int, ...]) -> list[RankStatus]:
    """Return the ranks of the table: all, or of many the culprits, those that ended and the latest."""
    ranks = sorted(
        status.ranks,
        key=lambda one: (one.rank not in culprits, not one.is_over, -(one.delay_ns or 0.0)),
    )
    return sorted(ranks[:MAX_RANKS_SHOWN], key=lambda one: one.rank)


def _describe_rank(one: RankStatus, now_ns: int) -> list[str]:
    since = "" if one.span_since_ns is None else fmt.duration(max(now_ns - one.span_since_ns, 0))
    return [
        str(one.rank),
        "ended" if one.is_over else one.state or f"on {clean(one.host)}",
        "" if one.step is None else str(one.step),
        "" if one.steps_per_s is None else f"{one.steps_per_s:.3g}",
        "" if one.delay_ns is None or one.delay_ns <= 0 else fmt.duration(one.delay_ns),
        "" if one.span is None else clean(one.span[1]),
        since,
    ]


def _describe_calls(one: RankStatus) -> list[str]:
    """Return name, last completed and open call of each communicator, a line each in three cells."""
    names, completed, entered = [], [], []
    for group in one.communicators:
        names.append(clean(group.name))
        completed.append("" if group.completed is None else "{} {}".format(*group.completed))
        is_open = group.entered is not None and group.entered != group.completed
        entered.append("{} {}".format(*group.entered) if is_open and group.entered else "")
    return ["\n".join(names), "\n".join(completed), "\n".join(entered)]
