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


def find_bounds(trace: Trace, processes: pl.DataFrame, tied_clocks: Container[int]) -> pl.DataFrame:
    """Return the messages and collectives that bound clocks best, in `EXCHANGE_COLUMNS`.

    Args:
        trace: A trace whose clocks are not aligned yet.
        processes: One row per `process`, with the number of its `clock`.
        tied_clocks: Clocks that need no further bounds. Collectives of these alone are left out.
    """
    clock_of = dict(processes.select("process", "clock").iter_rows())
    tables = [_pair_messages(trace.matched_messages, processes)]
    for grid in trace.calls:
        if any(clock_of.get(process, 0) not in tied_clocks for process in grid.processes.tolist()):
            tables += _bound_by_calls(grid, clock_of)
    return select_tightest(pl.concat(tables).lazy()).collect()


def order_by_certainty(exchanges: pl.DataFrame, maps: Mapping[int, ClockMap]) -> list[int]:
    """Return the unmapped clocks that exchanges tie to mapped ones, the most certain first.

    The uncertainty of a clock is that of the one it is tied to and half of the narrowest window between
    both. So each clock comes after those through which it is best tied (Dijkstra 1959).
    """
    forward_ns = pl.col("arrived") - pl.col("sent")
    return_ns = pl.col("answered") - pl.col("returned")
    narrowest = exchanges.group_by(_PAIR).agg(half_window_ns=(forward_ns + return_ns).min() / 2)
    peers_by_clock: dict[int, list[tuple[int, float]]] = {}
    for clock, peer, half_window_ns in narrowest.sort(_PAIR).iter_rows():
        peers_by_clock.setdefault(clock, []).append((peer, half_window_ns))
        peers_by_clock.setdefault(peer, []).append((clock, half_window_ns))
    frontier: list[tuple[float, int]] = []
    for clock, clock_map in maps.items():
        heappush(frontier, (float(clock_map.uncertainty_ns), clock))
    ordered_clocks: dict[int, None] = {}
    while frontier:
        uncertainty_ns, clock = heappop(frontier)
        if clock not in ordered_clocks:
            ordered_clocks[clock] = None
            for peer, half_window_ns in peers_by_clock.get(clock, ()):
                heappush(frontier, (uncertainty_ns + half_window_ns, peer))
    return [clock for clock in ordered_clocks if clock not in maps]


def _pair_messages(messages: pl.DataFrame, processes: pl.DataFrame) -> pl.DataFrame:
    """Pair each message with the nearest one in the other direction between the same clocks.

    Returns rows of `EXCHANGE_COLUMNS`. `messages` has one row per message with both sides.
    """
    sender_clocks, receiver_clocks = (
        processes.select(pl.col("process").alias(f"process{suffix}"), pl.col("clock").alias(name))
        for suffix, name in (("", "sender_clock"), ("_there", "receiver_clock"))
    )
    message_times = (
        messages.join(sender_clocks, on="process")
        .join(receiver_clocks, on="process_there")
        .select("sender_clock", "receiver_clock", begun="start_ns", over="end_ns_there")
    )
    sender, receiver = pl.col("sender_clock"), pl.col("receiver_clock")
    upward = message_times.filter(sender < receiver).select(
        clock=sender, peer=receiver, sent=pl.col("begun"), arrived=pl.col("over")
    )
    downward = message_times.filter(sender > receiver).select(
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
    """Yield a table per clock of a communicator but the first: its full calls (`EXCHANGE_COLUMNS`).

    A call is entered and exited by the first clock (0) and by the other one (1).
    """
    full_calls = grid.take_calls(np.flatnonzero(grid.is_synchronised))
    column_clocks = np.array(
        [clock_of.get(process, -1) for process in full_calls.processes.tolist()]
    )
    first_clock, *other_clocks = np.unique(column_clocks[column_clocks >= 0]).tolist() or [-1]
    for other_clock in other_clocks:
        entered_ns, exited_ns = np.empty((2, 2, full_calls.call_count), np.int64)
        for side, columns in enumerate(
            (column_clocks == first_clock, column_clocks == other_clock)
        ):
            start_ns, end_ns = full_calls.start_ns[:, columns], full_calls.end_ns[:, columns]
            entered_ns[side] = start_ns.max(axis=1)
            exited_ns[side] = np.where(start_ns == NEVER, FOREVER, end_ns).min(axis=1)
        is_complete = (entered_ns > NEVER).all(axis=0) & (exited_ns < FOREVER).all(axis=0)
        sides = {
            "sent": entered_ns[0],
            "arrived": exited_ns[1],
            "returned": entered_ns[1],
            "answered": exited_ns[0],
        }
        call_times = pl.DataFrame({name: times_ns[is_complete] for name, times_ns in sides.items()})
        yield _to_exchanges(call_times.with_columns(clock=first_clock, peer=other_clock))


def _to_exchanges(frame: pl.DataFrame) -> pl.DataFrame:
    complete = frame.with_columns(replied=pl.lit(value=True))
    return complete.select(pl.col(name).cast(kind) for name, kind in EXCHANGE_COLUMNS.items())
