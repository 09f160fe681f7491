"""Bounds between clocks from what ranks do together: messages, and full collectives.

A receive cannot end before its message was sent, and nobody leaves a full collective before everybody
has come. So messages in both directions, and each full collective, bound the difference of two clocks
from both sides, as a request to a parameter server does (`requests.py`). They tie the clocks that took
no part in the collectives of most: the stages of a pipeline, or groups that overlap.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.align.clocks.requests import EXCHANGE_COLUMNS, select_tightest
from tracelens.model.calls import NEVER
from tracelens.model.columns import FOREVER

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from tracelens.model.calls import CallGrid
    from tracelens.model.clock_map import ClockMap
    from tracelens.model.trace import Trace

_PAIR: Final = ("clock", "peer")


def find_bounds(trace: Trace, clocks: pl.DataFrame, tied_clocks: Container[int]) -> pl.DataFrame:
    """Return the tightest messages and collectives between clocks, in `EXCHANGE_COLUMNS`.

    Args:
        trace: A trace whose clocks are not aligned yet.
        clocks: The number of the clock (`clock`) of each `process`.
        tied_clocks: Clocks that need no further bounds. Collectives of these alone are left out.
    """
    clock_of = dict(clocks.select("process", "clock").iter_rows())
    exchanges = [_pair_messages(trace.exchanged, clocks)]
    for grid in trace.calls:
        if any(clock_of.get(process, 0) not in tied_clocks for process in grid.processes.tolist()):
            exchanges += _bound_by_calls(grid, clock_of)
    return select_tightest(pl.concat(exchanges).lazy()).collect()


def order_by_certainty(exchanges: pl.DataFrame, maps: Mapping[int, ClockMap]) -> list[int]:
    """Return the clocks that bounds tie to mapped ones, the most certain first.

    The uncertainty of a clock is that of the one it is tied to and half of the narrowest window between
    both. So each clock comes after those through which it is best tied (Dijkstra 1959).
    """
    there, back = pl.col("arrived") - pl.col("sent"), pl.col("answered") - pl.col("returned")
    narrowest_windows = exchanges.group_by(_PAIR).agg(half_window_ns=(there + back).min() / 2)
    windows_of: dict[int, list[tuple[int, float]]] = {}
    for clock, peer, half_window_ns in narrowest_windows.sort(_PAIR).iter_rows():
        windows_of.setdefault(clock, []).append((peer, half_window_ns))
        windows_of.setdefault(peer, []).append((clock, half_window_ns))
    frontier: list[tuple[float, int]] = []
    for clock, clock_map in maps.items():
        heappush(frontier, (float(clock_map.uncertainty_ns), clock))
    order: dict[int, None] = {}
    while frontier:
        uncertainty_ns, clock = heappop(frontier)
        if clock not in order:
            order[clock] = None
            for peer, half_window_ns in windows_of.get(clock, ()):
                heappush(frontier, (uncertainty_ns + half_window_ns, peer))
    return [clock for clock in order if clock not in maps]


def _pair_messages(messages: pl.DataFrame, clocks: pl.DataFrame) -> pl.DataFrame:
    """Pair each message with the nearest one in the other direction between the same clocks."""
    sender_clocks, receiver_clocks = (
        clocks.select(pl.col("process").alias(f"process{side}"), pl.col("clock").alias(name))
        for side, name in (("", "sender_clock"), ("_there", "receiver_clock"))
    )
    both_ends = (
        messages.join(sender_clocks, on="process")
        .join(receiver_clocks, on="process_there")
        .select("sender_clock", "receiver_clock", begun="start_ns", over="end_ns_there")
    )
    sender, receiver = pl.col("sender_clock"), pl.col("receiver_clock")
    upward = both_ends.filter(sender < receiver).select(
        clock=sender, peer=receiver, sent=pl.col("begun"), arrived=pl.col("over")
    )
    downward = both_ends.filter(sender > receiver).select(
        clock=receiver, peer=sender, returned=pl.col("begun"), answered=pl.col("over")
    )
    pairs = upward.sort("sent").join_asof(
        downward.sort("answered"),
        left_on="sent",
        right_on="answered",
        by=_PAIR,
        strategy="nearest",
        coalesce=False,
        check_sortedness=False,
    )
    return _to_exchanges(pairs.drop_nulls())


def _bound_by_calls(grid: CallGrid, clock_of: Mapping[int, int]) -> Iterator[pl.DataFrame]:
    """Yield the full calls of the first clock of a communicator with each of its other clocks."""
    full_calls = grid.take(np.flatnonzero(grid.is_full))
    clock_of_column = np.array(
        [clock_of.get(process, -1) for process in full_calls.processes.tolist()]
    )
    first_clock, *other_clocks = np.unique(clock_of_column[clock_of_column >= 0]).tolist() or [-1]
    for other_clock in other_clocks:
        entered_ns, exited_ns = np.empty((2, 2, full_calls.height), np.int64)
        for side, columns in enumerate(
            (clock_of_column == first_clock, clock_of_column == other_clock)
        ):
            start, end = full_calls.start_ns[:, columns], full_calls.end_ns[:, columns]
            entered_ns[side] = start.max(axis=1)
            exited_ns[side] = np.where(start == NEVER, FOREVER, end).min(axis=1)
        complete = (entered_ns > NEVER).all(axis=0) & (exited_ns < FOREVER).all(axis=0)
        times = {
            "sent": entered_ns[0],
            "arrived": exited_ns[1],
            "returned": entered_ns[1],
            "answered": exited_ns[0],
        }
        times_of_calls = pl.DataFrame({name: values[complete] for name, values in times.items()})
        yield _to_exchanges(times_of_calls.with_columns(clock=first_clock, peer=other_clock))


def _to_exchanges(frame: pl.DataFrame) -> pl.DataFrame:
    complete = frame.with_columns(replied=pl.lit(value=True))
    return complete.select(pl.col(name).cast(kind) for name, kind in EXCHANGE_COLUMNS.items())
