"""Who was waited for alone, and for how long: moments count once, and not those it waited itself."""

from collections.abc import Iterable
from typing import Any

import polars as pl
import pytest
from support.runs.traces import WORLD, call, span, trace_of

from tracelens.accounting import phases
from tracelens.analyses import arrivals
from tracelens.facts import Facts
from tracelens.load import prepare
from tracelens.model.trace import COMMUNICATOR_COLUMNS

MS = 1_000_000
START = 10**12
GROUPS = {WORLD: [0, 1, 2], "first": [0, 1], "second": [1, 2]}


def alone_ms(rows: Iterable[dict[str, Any]]) -> dict[int, float]:
    """Return by rank how long it was waited for alone."""
    steps = [span(rank, "step", START, START + 100 * MS, step=0) for rank in range(3)]
    groups = [{"communicator": uid, "name": uid, "ranks": ranks} for uid, ranks in GROUPS.items()]
    trace = prepare(
        trace_of([*steps, *rows], ranks=3).with_(
            communicators=pl.DataFrame(groups, schema=COMMUNICATOR_COLUMNS)
        )
    )
    last = arrivals.run(Facts(trace, phases.run(trace))).last
    return {row["rank"]: row["alone_ns"] / MS for row in last.iter_rows(named=True)}


def make_times(rank: int, seq: int, begin: float, end: float, **more: Any) -> dict[str, Any]:
    return call(rank, seq, START + round(begin * MS), START + round(end * MS), step=0, **more)


def test_calls_in_flight_are_not_added_up() -> None:
    """Rank 2 comes 10 ms late to three buckets, which the others began a millisecond apart."""
    arrivals_ms = {0: (0.0, 1.0, 2.0), 1: (0.0, 1.0, 2.0), 2: (10.0, 11.0, 12.0)}
    waits_ms = alone_ms(
        make_times(rank, seq, begin, 13.0 + seq)
        for rank, all_ in arrivals_ms.items()
        for seq, begin in enumerate(all_)
    )
    assert waits_ms == {0: 0.0, 1: 0.0, 2: 12.0}


def test_calls_that_bring_ranks_together_are() -> None:
    """Where everybody waits for each call, its lateness begins anew."""
    waits_ms = alone_ms(
        make_times(rank, seq, 20.0 * seq + (5.0 if rank == 1 else 0.0), 20.0 * seq + 6.0, thread=0)
        for rank in range(3)
        for seq in range(3)
    )
    assert waits_ms == {0: 0.0, 1: 15.0, 2: 0.0}


def test_who_had_to_wait_itself_is_not_to_blame() -> None:
    """Rank 1 comes late to rank 2, for it waited for rank 0 in another group."""
    waits_ms = alone_ms(
        [
            make_times(0, 0, 20.0, 20.5, communicator="first", thread=0),
            make_times(1, 0, 5.0, 20.5, communicator="first", thread=0),
            make_times(1, 0, 21.0, 21.5, communicator="second", thread=0),
            make_times(2, 0, 6.0, 21.5, communicator="second", thread=0),
        ]
    )
    assert waits_ms == pytest.approx({0: 15.0, 1: 1.0, 2: 0.0})
