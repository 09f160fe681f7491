"""Time by category in a window, exactly, and collective calls: when each rank entered and left one."""

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


MOST_ITEMS: Final = 1 << 22  # looked through at a time


def item_ranges_in(
    lanes: Lanes, window: Window, chosen_lanes: Sequence[int], max_items: int = MOST_ITEMS
) -> list[slice]:
    """Return the items of some lanes in a window, in pieces that fit into memory."""
    item_ranges = _join_ranges(*lanes.bounds(window.start_ns, window.end_ns, list(chosen_lanes)))
    return [
        slice(begin, min(begin + max_items, end))
        for start, end in item_ranges
        for begin in range(start, end, max_items)
    ]


def _join_ranges(first_items: Ints, end_items: Ints) -> list[tuple[int, int]]:
    """Join ranges of items, [begin, end), that touch; empty ones are left out."""
    ranges: list[tuple[int, int]] = []
    for begin_item, end_item in zip(first_items.tolist(), end_items.tolist(), strict=True):
        if begin_item == end_item:
            continue
        if ranges and ranges[-1][1] == begin_item:
            ranges[-1] = ranges[-1][0], end_item
        else:
            ranges.append((begin_item, end_item))
    return ranges


def time_by_category(lanes: Lanes, window: Window) -> dict[str, int]:
    """Return the time of all workers by category within a window, in ns, the most first."""
    workers = [row for row, lane in enumerate(lanes.lanes) if lane.role == "worker"]
    ns_by_code = np.zeros(SHADE)
    for items in item_ranges_in(lanes, window, workers):
        starts_ns = np.maximum(lanes.starts[items], window.start_ns)
        ends_ns = np.minimum(lanes.ends[items], window.end_ns)
        ns_by_code += np.bincount(lanes.codes[items], ends_ns - starts_ns, minlength=SHADE)
    order = np.argsort(-ns_by_code, kind="stable")
    return {label_of(int(code)): int(ns_by_code[code]) for code in order if ns_by_code[code]}


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
        lambda: (block.times() for grid in grids for _, block in grid.blocks()), TIME_COLUMNS
    )


def call_at(calls: pl.LazyFrame, rank: int, at_ns: int) -> Call | None:
    """Return the call that a rank was in at a moment: of several, what ends first."""
    is_open = pl.col("end_ns").is_null() | (pl.col("end_ns") > at_ns)
    is_inside = (pl.col("start_ns") <= at_ns) & is_open
    matching_calls = calls.filter(is_inside, pl.col("rank") == rank).sort("end_ns", nulls_last=True)
    return _first_call(calls, matching_calls)


def call_around(calls: pl.LazyFrame, start_ns: int, end_ns: int) -> Call | None:
    """Return the call whose first or last arrival, and last exit, are nearest to a stretch of time."""
    touching_calls = calls.filter(pl.col("start_ns") <= end_ns, pl.col("end_ns") >= start_ns)
    distances_ns = [(pl.col(name) - start_ns).abs() for name in ("first", "last")]
    call_windows = touching_calls.group_by("communicator", "seq").agg(
        first=pl.col("start_ns").min(), last=pl.col("start_ns").max(), over=pl.col("end_ns").max()
    )
    distance_ns = pl.min_horizontal(distances_ns) + (pl.col("over") - end_ns).abs()
    return _first_call(calls, call_windows.sort(distance_ns, "communicator", "seq"))


def _first_call(calls: pl.LazyFrame, found: pl.LazyFrame) -> Call | None:
    rows = found.select("communicator", "seq").head(1).collect().rows()
    return find_call(calls, *rows[0]) if rows else None


def find_call(calls: pl.LazyFrame, communicator: str, seq: int) -> Call | None:
    """Return a call by its communicator and number, or None."""
    is_this_call = (pl.col("seq") == seq) & (pl.col("communicator") == communicator)
    rows = calls.filter(is_this_call).collect()
    if rows.is_empty():
        return None
    completed = rows.drop_nulls("end_ns")
    return Call(
        op=str(rows["op"][0]),
        seq=seq,
        entered=dict(rows.select("rank", "start_ns").iter_rows()),
        left=dict(completed.select("rank", "end_ns").iter_rows()),
    )
