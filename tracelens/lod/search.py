"""Finds spans by name, time by category, and collective calls.

Spans of a name in a window: how often, how long, and where it took longest. How the ranks spent a
window, exactly. Of one collective call: when each rank entered it, which was last, and when they
left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.lod.lanes import SHADE, label_of
from tracelens.model.calls import TIME_COLUMNS
from tracelens.model.events import lazily

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens.arrays import Ints
    from tracelens.lod.lanes import Lanes
    from tracelens.lod.viewport import Window
    from tracelens.model.trace import Trace


MOST_NAMES: Final = 8
MOST_ITEMS: Final = 1 << 22  # looked through at a time


@dataclass(frozen=True)
class Match:
    """A name and the items that carry it; `longest` is one of them, in `lane`."""

    name: str
    count: int
    total_ns: int
    longest: int
    lane: int


def find(lanes: Lanes, wanted: str, seen: Window, *, max_items: int = MOST_ITEMS) -> list[Match]:
    """Return the names that hold some text, in any case, by the time that they take in a window."""
    text = wanted.strip().casefold()
    named = [i for i, word in enumerate(lanes.words) if text and text in word.casefold()]
    if not named:
        return []
    row = np.full(len(lanes.words), -1)
    row[named] = np.arange(len(named))
    count, total = np.zeros(len(named), np.int64), np.zeros(len(named), np.int64)
    longest, length = np.zeros(len(named), np.int64), np.zeros(len(named), np.int64)
    for part in portions(lanes, seen, range(len(lanes)), max_items):
        which = row[lanes.names[part]]
        hits = np.flatnonzero(which >= 0)
        of, lasted = which[hits], lanes.ends[part][hits] - lanes.starts[part][hits]
        count += np.bincount(of, minlength=len(named))
        np.add.at(total, of, lasted)
        order = np.argsort(lasted, kind="stable")
        best = np.zeros(len(named), np.int64)
        best[of[order]] = order  # the last one written is the longest
        better = np.isin(np.arange(len(named)), of)
        better[better] = lasted[best[better]] > length[better]
        longest[better] = part.start + hits[best[better]]
        length[better] = lasted[best[better]]
    ranked = np.argsort(-total, kind="stable")[:MOST_NAMES]
    lane = np.searchsorted(lanes.offsets, longest, side="right") - 1
    return [
        Match(lanes.words[named[i]], int(count[i]), int(total[i]), int(longest[i]), int(lane[i]))
        for i in ranked
        if count[i]
    ]


def portions(
    lanes: Lanes, seen: Window, chosen: Sequence[int], max_items: int = MOST_ITEMS
) -> list[slice]:
    """Return the items of some lanes in a window, in pieces that fit into memory."""
    merged = _merged(*lanes.bounds(seen.start_ns, seen.end_ns, list(chosen)))
    return [
        slice(begin, min(begin + max_items, end))
        for start, end in merged
        for begin in range(start, end, max_items)
    ]


def _merged(first: Ints, last: Ints) -> list[tuple[int, int]]:
    """Join stretches that touch."""
    found: list[tuple[int, int]] = []
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        if begin == end:
            continue
        if found and found[-1][1] == begin:
            found[-1] = found[-1][0], end
        else:
            found.append((begin, end))
    return found


def time_by_category(lanes: Lanes, seen: Window) -> dict[str, int]:
    """Return the time of all workers by category within a window, in ns, the most first."""
    workers = [i for i, lane in enumerate(lanes.lanes) if lane.role == "worker"]
    sums = np.zeros(SHADE)
    for part in portions(lanes, seen, workers):
        start = np.maximum(lanes.starts[part], seen.start_ns)
        end = np.minimum(lanes.ends[part], seen.end_ns)
        sums += np.bincount(lanes.codes[part], end - start, minlength=SHADE)
    order = np.argsort(-sums, kind="stable")
    return {label_of(int(code)): int(sums[code]) for code in order if sums[code]}


@dataclass(frozen=True)
class Call:
    """When each rank that took part entered and left; a rank that is still inside has not left."""

    op: str
    seq: int
    entered: Mapping[int, int]
    left: Mapping[int, int]

    @property
    def first_ns(self) -> int:
        """When the first rank entered."""
        return min(self.entered.values())

    @property
    def last_rank(self) -> int:
        """Who entered last."""
        return max(self.entered, key=lambda rank: self.entered[rank])

    @property
    def last_ns(self) -> int:
        """When the last rank entered."""
        return self.entered[self.last_rank]

    @property
    def over_ns(self) -> int:
        """When the last rank left; when the last one entered, if none has left yet."""
        return max(self.left.values(), default=self.last_ns)


def calls_of(trace: Trace) -> pl.LazyFrame:
    """Return all calls of a trace, a row a rank, by communicator, number and rank.

    They are made when they are asked for, some at a time: as rows they take much more memory.
    """
    grids = sorted(trace.calls, key=lambda grid: grid.uid)
    return lazily(
        lambda: (some.times() for grid in grids for _, some in grid.blocks()), TIME_COLUMNS
    )


def call_at(calls: pl.LazyFrame, rank: int, at_ns: int) -> Call | None:
    """Return the call that a rank was in at a moment: of several, what ends first."""
    inside = (pl.col("start_ns") <= at_ns) & (
        pl.col("end_ns").is_null() | (pl.col("end_ns") > at_ns)
    )
    found = calls.filter(inside, pl.col("rank") == rank).sort("end_ns", nulls_last=True)
    return _first_call(calls, found)


def call_around(calls: pl.LazyFrame, start_ns: int, end_ns: int) -> Call | None:
    """Return the call that a stretch of time is of: from its first or last arrival to its last exit."""
    touching = calls.filter(pl.col("start_ns") <= end_ns, pl.col("end_ns") >= start_ns)
    begins = [(arrival - start_ns).abs() for arrival in (pl.col("first"), pl.col("last"))]
    whole = touching.group_by("communicator", "seq").agg(
        first=pl.col("start_ns").min(), last=pl.col("start_ns").max(), over=pl.col("end_ns").max()
    )
    apart = pl.min_horizontal(begins) + (pl.col("over") - end_ns).abs()
    return _first_call(calls, whole.sort(apart, "communicator", "seq"))


def _first_call(calls: pl.LazyFrame, found: pl.LazyFrame) -> Call | None:
    rows = found.select("communicator", "seq").head(1).collect().rows()
    return find_call(calls, *rows[0]) if rows else None


def find_call(calls: pl.LazyFrame, communicator: str, seq: int) -> Call | None:
    """Return a call by its communicator and number; None where there is none."""
    wanted = (pl.col("seq") == seq) & (pl.col("communicator") == communicator)
    found = calls.filter(wanted).collect()
    if found.is_empty():
        return None
    over = found.drop_nulls("end_ns")
    return Call(
        op=str(found["op"][0]),
        seq=seq,
        entered=dict(found.select("rank", "start_ns").iter_rows()),
        left=dict(over.select("rank", "end_ns").iter_rows()),
    )
