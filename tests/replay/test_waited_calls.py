"""A call that its thread waits for is no call that queues on a stream, wherever it stands."""

from typing import Any, Final

import polars as pl
import pytest

import tracelens as tl
from tracelens import Trace
from tracelens.verdicts.whatif import whatif

US: Final = 1_000
STEPS: Final = 30
CALLS: Final = 40
OWN_US: Final = 15  # between two calls, as a division by the number of ranks


def many_small_calls(ranks: int, *, on_a_track: bool) -> Trace:
    """Small reductions one after the other, on the training thread or on a track with its waits."""
    rows, now_ns, number = [], 1_000_000 * US, 0
    for step in range(STEPS):
        fields: dict[str, Any] = {"host": "a", "step": step, "thread": "main"}
        for rank in range(ranks):
            rows += [
                fields
                | {
                    "rank": rank,
                    "kind": kind,
                    "start_ns": now_ns + begin_ns,
                    "end_ns": now_ns + end_ns,
                }
                for kind, begin_ns, end_ns in (
                    ("forward", 0, 1_000 * US),
                    ("backprop", 1_000 * US, 2_000 * US),
                )
            ]
        now_ns += 2_000 * US
        for index in range(CALLS):
            nbytes = (256, 16_384)[index % 2]
            end_ns = now_ns + 300 * US + 3 * nbytes
            about = {"op": "allreduce", "seq": number, "bytes": nbytes, "communicator": "w"}
            for rank in range(ranks):
                thread = "collectives" if on_a_track else "main"
                row = fields | {"rank": rank, "start_ns": now_ns, "end_ns": end_ns}
                rows.append(row | about | {"kind": "reduction", "thread": thread})
                if on_a_track:
                    rows.append(row | {"kind": "wait"})
            now_ns = end_ns + OWN_US * US
            number += 1
        rows += [
            fields
            | {"rank": rank, "kind": "update", "start_ns": now_ns, "end_ns": now_ns + 200 * US}
            for rank in range(ranks)
        ]
        now_ns += 210 * US
    return Trace.from_table(pl.DataFrame(rows, infer_schema_length=None))


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_where_a_call_stands_changes_nothing(ranks: int) -> None:
    """Small messages with one saving; what ranks do between the calls stays."""
    savings = []
    for on_a_track in (False, True):
        trace = many_small_calls(ranks, on_a_track=on_a_track)
        (small,) = tl.analyze(trace).findings
        assert (small.kind, small.evidence["messages_per_step"]) == ("small_messages", 1)
        savings.append((small.saving, whatif(trace, "overlap=on").answers[0].saving))
    calls_us = CALLS * (300 + 3 * (256 + 16_384) / 2 / 1_000)
    step_us = 2_000 + calls_us + CALLS * OWN_US + 210
    truth = (CALLS - 1) * 300 / step_us
    assert savings[0] == pytest.approx(savings[1], rel=0.01)
    assert savings[0][0] == pytest.approx(truth, rel=0.01)
