"""Time by category in a window, exactly, and collective calls: when each rank entered and left one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.lod.lanes import SHADE, get_label
from tracelens.model.calls import TIME_COLUMNS
from tracelens.model.events import make_lazy_frame

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens.arrays import Ints
    from tracelens.lod.lanes import Lanes
    from tracelens.lod.viewport import Window
    from tracelens.model.trace import Trace


MOST_ITEMS: Final = 1 << 22  # looked through at a time


def list_item_ranges(
    lanes: Lanes, window: Window, chosen_lanes: Sequence[int], max_items: int = MOST_ITEMS
) -> list[slice]:
    """Return the items of some lanes in a window, in pieces that fit into memory."""
    item_ranges = _join_ranges(
        *lanes.find_item_ranges(window.start_ns, window.end_ns, list(chosen_lanes))
    )
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


def sum_by_category(lanes: Lanes, window: Window) -> dict[str, int]:
    """Return the time of all workers by category within a window, in ns, the most first."""
    workers = [row for row, lane in enumerate(lanes.owners) if lane.role == "worker"]
    ns_by_code = np.zeros(SHADE)
    for items in list_item_ranges(lanes, window, workers):
        starts_ns = np.maximum(lanes.starts_ns[items], window.start_ns)
        ends_ns = np.minimum(lanes.ends_ns[items], window.end_ns)
        ns_by_code += np.bincount(lanes.palette_codes[items], ends_ns - starts_ns, minlength=SHADE)
    order = np.argsort(-ns_by_code, kind="stable")
    return {get_label(int(code)): int(ns_by_code[code]) for code in order if ns_by_code[code]}


@dataclass(frozen=True)
class Call:
    """When each rank entered and left a call, ns by rank; a rank that is still inside has not left."""

    op: str
    seq: int
    entered_ns_by_rank: Mapping[int, int]
    left_ns_by_rank: Mapping[int, int]

    @property
    def first_arrival_ns(self) -> int:
        """When the first rank entered."""
        return min(self.entered_ns_by_rank.values())

    @property
    def last_arriving_rank(self) -> int:
        """Who entered last."""
        return max(self.entered_ns_by_rank, key=lambda rank: self.entered_ns_by_rank[rank])

    @property
    def last_arrival_ns(self) -> int:
        """When the last rank entered."""
        return self.entered_ns_by_rank[self.last_arriving_rank]

    @property
    def last_exit_ns(self) -> int:
        """When the last rank left; when the last one entered, if none has left yet."""
        return max(self.left_ns_by_rank.values(), default=self.last_arrival_ns)


def list_calls(trace: Trace) -> pl.LazyFrame:
    """Return all calls of a trace, a row a rank, by communicator, number and rank.

    They are made when they are asked for, some at a time: as rows they take much more memory.
    """
    grids = sorted(trace.calls, key=lambda grid: grid.communicator_uid)
    return make_lazy_frame(
        lambda: (block.to_time_table() for grid in grids for _, block in grid.split_into_blocks()),
        TIME_COLUMNS,
    )


def find_call_at(calls: pl.LazyFrame, rank: int, at_ns: int) -> Call | None:
    """Return the call that a rank was in at a moment: of several, what ends first."""
    is_open = pl.col("end_ns").is_null() | (pl.col("end_ns") > at_ns)
    is_inside = (pl.col("start_ns") <= at_ns) & is_open
    matching_calls = calls.filter(is_inside, pl.col("rank") == rank).sort("end_ns", nulls_last=True)
    return _first_call(calls, matching_calls)


def find_call_around(calls: pl.LazyFrame, start_ns: int, end_ns: int) -> Call | None:
    """Return the call whose first or last arrival, and last exit, are nearest to a stretch of time."""
    touching_calls = calls.filter(pl.col("start_ns") <= end_ns, pl.col("end_ns") >= start_ns)
    distances_ns = [(pl.col(name) - start_ns).abs() for name in ("first", "last")]
    call_windows = touching_calls.group_by("communicator", "seq").agg(
        first=pl.col("start_ns").min(), last=pl.col("start_ns").max(), over=pl.col("end_ns").max()
    )
    distance_ns = pl.min_horizontal(distances_ns) + (pl.col("over") - end_ns).abs()
    return _first_call(calls, call_windows.sort(distance_ns, "communicator", "seq"))


def _first_call(calls: pl.LazyFrame, candidates: pl.LazyFrame) -> Call | None:
    """Return the call that the first of some candidates (rows) names; None without candidates."""
    rows = candidates.select("communicator", "seq").head(1).collect().rows()
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
        entered_ns_by_rank=dict(rows.select("rank", "start_ns").iter_rows()),
        left_ns_by_rank=dict(completed.select("rank", "end_ns").iter_rows()),
    )
