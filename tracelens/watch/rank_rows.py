"""The table of ranks that a watch shows: on a terminal, and on the page Live of the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracelens.model import fmt
from tracelens.model.inert import clean

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tracelens.watch.status import JobStatus, RankStatus

__all__ = ["COLUMNS", "NUMERIC_COLUMNS", "choose_ranks", "describe_rank"]

MAX_RANKS_SHOWN: Final = 32  # ranks: of more the late ones are shown [policy]
COLUMNS: Final = (
    *("rank", "state", "step", "steps/s", "late", "is in", "since"),
    *("communicator", "last completed", "open"),
)
NUMERIC_COLUMNS: Final = ("steps/s", "late", "since")


def choose_ranks(status: JobStatus, culprits: Collection[int]) -> list[RankStatus]:
    """Return the ranks to show: all, or of many the culprits, those that ended and the latest."""
    ranks = sorted(
        status.ranks,
        key=lambda rank_status: (
            rank_status.rank not in culprits,
            not rank_status.is_over,
            -(rank_status.delay_ns or 0.0),
        ),
    )
    return sorted(ranks[:MAX_RANKS_SHOWN], key=lambda rank_status: rank_status.rank)


def describe_rank(rank_status: RankStatus, now_ns: int) -> Sequence[str]:
    """Return the cells of a rank, one for each of `COLUMNS`; the last three have a line a communicator.

    `now_ns` is the wall time of the look.
    """
    since_ns = rank_status.span_since_ns
    delay_ns = rank_status.delay_ns
    return [
        str(rank_status.rank),
        "ended" if rank_status.is_over else rank_status.state or f"on {clean(rank_status.host)}",
        "" if rank_status.step is None else str(rank_status.step),
        "" if rank_status.steps_per_s is None else f"{rank_status.steps_per_s:.3g}",
        "" if delay_ns is None or delay_ns <= 0 else fmt.duration(delay_ns),
        "" if rank_status.span is None else clean(rank_status.span[1]),
        "" if since_ns is None else fmt.duration(max(now_ns - since_ns, 0)),
        *_describe_calls(rank_status),
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
