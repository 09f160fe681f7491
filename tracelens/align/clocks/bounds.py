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

    from tracelens.align.clocks.maps import ClockMap
    from tracelens.model.calls import CallGrid
    from tracelens.model.trace import Trace

__all__ = ["find_bounds", "order_by_certainty"]

_PAIR: Final = ("clock", "peer")


def find_bounds(trace: Trace, clocks: pl.DataFrame, tied: Container[int]) -> pl.DataFrame:
    """Return the tightest messages and collectives between clocks, in `EXCHANGE_COLUMNS`.

    Args:
        trace: A trace whose clocks are not aligned yet.
        clocks: The number of the clock (`clock`) of each `process`.
        tied: Clocks that need no further bounds. Collectives of these alone are left out.
    """
    clock_of = dict(clocks.select("process", "clock").iter_rows())
    exchanges = [_pair_messages(trace.exchanged, clocks)]
    for grid in trace.calls:
        if any(clock_of.get(process, 0) not in tied for process in grid.processes.tolist()):
            exchanges += _bound_by_calls(grid, clock_of)
    return select_tightest(pl.concat(exchanges).lazy()).collect()


def order_by_certainty(asked: pl.DataFrame, maps: Mapping[int, ClockMap]) -> list[int]:
    """Return the clocks that bounds tie to mapped ones, the most certain first.

    The uncertainty of a clock is that of the one it is tied to and half of the narrowest window between
    both. So each clock comes after those through which it is best tied (Dijkstra 1959).
    """
    there, back = pl.col("arrived") - pl.col("sent"), pl.col("answered") - pl.col("returned")
    narrowest = asked.group_by(_PAIR).agg(half_window_ns=(there + back).min() / 2)
    near: dict[int, list[tuple[int, float]]] = {}
    for clock, peer, half_window_ns in narrowest.sort(_PAIR).iter_rows():
        near.setdefault(clock, []).append((peer, half_window_ns))
        near.setdefault(peer, []).append((clock, half_window_ns))
    reached: list[tuple[float, int]] = []
    for clock, found in maps.items():
        heappush(reached, (float(found.uncertainty_ns), clock))
    order: dict[int, None] = {}
    while reached:
        uncertainty_ns, clock = heappop(reached)
        if clock not in order:
            order[clock] = None
            for peer, half_window_ns in near.get(clock, ()):
                heappush(reached, (uncertainty_ns + half_window_ns, peer))
    return [clock for clock in order if clock not in maps]


def _pair_messages(messages: pl.DataFrame, clocks: pl.DataFrame) -> pl.DataFrame:
    """Pair each message with the nearest one in the other direction between the same clocks."""
    sender, receiver = (
        clocks.select(pl.col("process").alias(f"process{side}"), pl.col("clock").alias(name))
        for side, name in (("", "sender_clock"), ("_there", "receiver_clock"))
    )
    ends = (
        messages.join(sender, on="process")
        .join(receiver, on="process_there")
        .select("sender_clock", "receiver_clock", begun="start_ns", over="end_ns_there")
    )
    up, down = pl.col("sender_clock"), pl.col("receiver_clock")
    forward = ends.filter(up < down).select(
        clock=up, peer=down, sent=pl.col("begun"), arrived=pl.col("over")
    )
    back = ends.filter(up > down).select(
        clock=down, peer=up, returned=pl.col("begun"), answered=pl.col("over")
    )
    paired = forward.sort("sent").join_asof(
        back.sort("answered"),
        left_on="sent",
        right_on="answered",
        by=_PAIR,
        strategy="nearest",
        coalesce=False,
        check_sortedness=False,
    )
    return _to_exchanges(paired.drop_nulls())


def _bound_by_calls(grid: CallGrid, clock_of: Mapping[int, int]) -> Iterator[pl.DataFrame]:
    """Yield the full calls of the first clock of a communicator with each of its other clocks."""
    full = grid.taken(np.flatnonzero(grid.is_full))
    clock = np.array([clock_of.get(process, -1) for process in full.processes.tolist()])
    hub, *peers = np.unique(clock[clock >= 0]).tolist() or [-1]
    for peer in peers:
        entered_ns, exited_ns = np.empty((2, 2, full.height), np.int64)
        for side, columns in enumerate((clock == hub, clock == peer)):
            start, end = full.start_ns[:, columns], full.end_ns[:, columns]
            entered_ns[side] = start.max(axis=1)
            exited_ns[side] = np.where(start == NEVER, FOREVER, end).min(axis=1)
        complete = (entered_ns > NEVER).all(axis=0) & (exited_ns < FOREVER).all(axis=0)
        times = {
            "sent": entered_ns[0],
            "arrived": exited_ns[1],
            "returned": entered_ns[1],
            "answered": exited_ns[0],
        }
        frame = pl.DataFrame({name: values[complete] for name, values in times.items()})
        yield _to_exchanges(frame.with_columns(clock=hub, peer=peer))


def _to_exchanges(frame: pl.DataFrame) -> pl.DataFrame:
    whole = frame.with_columns(replied=pl.lit(value=True))
    return whole.select(pl.col(name).cast(kind) for name, kind in EXCHANGE_COLUMNS.items())
