"""Notes on what the user asked to leave out, so that nobody takes it for all that happened."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tracelens.schema.vocabulary import OUTDATED
from tracelens.trace import Note
from tracelens.words import duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracelens.schema.side import Past, Retention, SideTables

__all__ = ["left_out"]


def left_out(sides: Iterable[SideTables]) -> list[Note]:
    """Say, once for all processes that were told the same, which steps lack what, and how much."""
    thinned: Counter[tuple[int, int]] = Counter()
    outdated: Counter[int] = Counter()
    gone: dict[int, list[Past]] = {}
    for side in sides:
        asked: Retention = side.retention
        if asked.every is not None:
            thinned[asked.every, asked.burst] += sum(side.thinned.values())
        if asked.last is not None:
            outdated[asked.last] += side.dropped.get(OUTDATED, 0)
            gone.setdefault(asked.last, []).extend(side.past)
    return [
        *(_of_detail(*steps, count) for steps, count in thinned.items()),
        *(_of_the_past(steps, count, gone[steps]) for steps, count in outdated.items() if count),
    ]


def _of_detail(every: int, burst: int, count: int) -> Note:
    sentence = (
        f"As asked, {burst} of every {every} steps have all their events; of the others {count:,} were "
        "left out. Steps and phases are whole in all of them, so shares of time are of the whole run; "
        "counts of spans and calls are not."
    )
    return Note("", sentence, "chosen")


def _of_the_past(last: int, count: int, gone: Sequence[Past]) -> Note:
    sentence = (
        f"As asked, only the last {last} steps were kept, and those that were marked: {count:,} older "
        "events were left out. The time between marked steps and the last ones counts nowhere: shares "
        "of time, and efficiency, are of the steps that are here."
        f"{_how_long(gone)}"
    )
    return Note("", sentence, "chosen")


def _how_long(gone: Sequence[Past]) -> str:
    """Say how long the steps took that were left out: of them this is known."""
    if not gone:
        return ""
    longest = max(gone, key=lambda row: row.longest_ns)
    mean_ns = sum(row.total_ns for row in gone) / max(sum(row.steps for row in gone), 1)
    return (
        f" Steps left out, from {min(row.first for row in gone)} to {max(row.last for row in gone)}, "
        f"took {duration(mean_ns)} on average, the longest, step {longest.longest}, "
        f"{duration(longest.longest_ns)}."
    )
