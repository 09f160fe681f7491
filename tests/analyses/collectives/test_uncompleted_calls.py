"""Time in a call that did not complete is no transfer, so it tells no bandwidth."""

from typing import Any, Final

import pytest
from support.runs.traces import call, span, trace_of

from tracelens import Trace
from tracelens.accounting.communication import transfers
from tracelens.load import prepare

CALLS: Final = 10
MS: Final = 10**6


def run(ranks: int, last: dict[str, Any]) -> Trace:
    """Ten calls of 100 ns; `last` is what rank 0 says of the last one, which takes 10,000 ns."""
    rows = [span(rank, "step", 0, 20_000, step=0) for rank in range(ranks)]
    for number in range(CALLS):
        begin_ns = 200 * number
        end = begin_ns + (100 if number < CALLS - 1 else 10_000)
        for rank in range(ranks):
            said = {"step": 0} | (last if number == CALLS - 1 and rank == 0 else {})
            ended = None if said.get("status") == "open" else end
            rows.append(call(rank, number, begin_ns, ended, **said))
    return prepare(trace_of(rows, ranks=ranks))


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize(
    "last",
    [{"status": "exception"}, {"status": "open"}, {"op": "broadcast"}],
    ids=["an error", "never ended", "another call"],
)
def test_a_collective_that_did_not_complete(ranks: int, last: dict[str, Any]) -> None:
    """Whether it failed on a rank, is open there, or was made by no other rank."""
    found = transfers.list_collective_calls(run(ranks, last))
    assert found["wire_ns"].to_list() == [100] * (CALLS - 1)


@pytest.mark.parametrize("status", ["closed", "estimated"])
def test_a_collective_that_completed(status: str) -> None:
    assert transfers.list_collective_calls(run(2, {"status": status})).height == CALLS


@pytest.mark.parametrize("fails", [True, False])
def test_a_message_that_failed(fails: bool) -> None:  # noqa: FBT001 - drawn
    """Its receiver gave up after a long time."""
    rows = [span(rank, "step", 0, 20 * MS, step=0) for rank in range(2)]
    fields: dict[str, Any] = {"step": 0, "bytes": 8, "communicator": "world-uid", "key": 0}
    for number in range(2):
        begin_ns = number * MS
        end = begin_ns + (9 * MS if number else MS // 10)
        over = {"status": "exception" if fails and number else "closed"}
        rows.append(span(0, "reduction", begin_ns, end, op="send", peer=1, seq=number, **fields))
        rows.append(
            span(1, "reduction", begin_ns, end, op="recv", peer=0, seq=number, **fields | over)
        )
    found = transfers.list_messages(prepare(trace_of(rows, ranks=2)))
    assert sorted(found["link_ns"]) == ([MS // 10] if fails else [MS // 10, 9 * MS])
