"""Runs whose time does not fit on one line of 64-bit nanoseconds are not replayed."""

import polars as pl
import pytest

import tracelens as tl
from tracelens.errors import InvalidArgument
from tracelens.replay.whatif import Replay

DAY_NS = 86_400 * 10**9


def test_many_ranks_far_apart_are_not_replayed() -> None:
    """Sixty ranks with one short step each, spread over twenty years."""
    rows = [
        {"rank": rank, "step": 0, "kind": kind, "start_ns": begin_ns, "end_ns": begin_ns + 10**6}
        for rank in range(60)
        for kind, begin_ns in (
            ("forward", rank * 120 * DAY_NS),
            ("backprop", rank * 120 * DAY_NS + 10**6),
        )
    ]
    trace = tl.Trace.from_table(pl.DataFrame(rows), one_clock=True)
    with pytest.raises(InvalidArgument, match="nothing to replay"):
        Replay.from_trace(trace).answer("rank:0=median")
    assert tl.analyze(trace).verdict.state == "inconclusive"
