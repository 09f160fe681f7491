"""Both sides of messages, and how long one rank waited in them for the other."""

from typing import Any

import pytest
from support.runs.traces import call, span, trace_of

from tracelens.accounting import phases
from tracelens.load import prepare
from tracelens.model.trace import Trace

RING = {"algorithm": "ring", "thread": 0}


def message(op: str, rank: int, peer: int, start_ns: int, end_ns: int, **more: Any) -> Any:
    """Write one side of a message on the training thread."""
    usual: dict[str, Any] = {"op": op, "peer": peer, "seq": 0, "communicator": "pairs", "depth": 1}
    return span(rank, "reduction", start_ns, end_ns, **(usual | more))


def run(*rows: dict[str, Any], ranks: int = 2) -> Trace:
    steps = [span(rank, "step", 0, 100, step=0) for rank in range(ranks)]
    return prepare(trace_of([*steps, *rows], ranks=ranks))


def awaited_rows(trace: Trace) -> list[tuple[Any, ...]]:
    return trace.message_waits.select("process", "start_ns", "end_ns", "rank").rows()


def test_a_receive_waits_until_the_message_is_sent() -> None:
    """And then it is transfer: a late sender (Scalasca)."""
    trace = run(message("recv", 0, 1, 20, 80), message("send", 1, 0, 60, 65))
    assert awaited_rows(trace) == [(0, 20, 60, 1)]
    mine = [row for row in phases.run(trace).segments.iter_rows(named=True) if row["rank"] == 0]
    found = [(str(row["category"]), row["start_ns"], row["end_ns"]) for row in mine]
    assert found[1:3] == [("wait", 20, 60), ("transfer", 60, 80)]


@pytest.mark.parametrize(("ends", "waits"), [(70, [(0, 20, 60, 1)]), (30, [])])
def test_a_send_waits_only_if_it_is_not_buffered(ends: int, waits: list[Any]) -> None:
    """One that ends before its receive begins stopped no rank."""
    trace = run(message("send", 0, 1, 20, ends), message("recv", 1, 0, 60, 75))
    assert awaited_rows(trace) == waits


WAIT: dict[str, Any] = {"op": "request_wait", "depth": 1}


def test_a_send_in_flight_is_awaited_in_the_wait_for_it() -> None:
    """A rendezvous: from the begin of `Waitall` on, not from that of the send, until it is received."""
    rows = [
        message("send", 0, 1, 20, 80, thread=1),
        span(0, "wait", 40, 80, **WAIT),
        message("recv", 1, 0, 60, 80),
    ]
    trace = run(*rows)
    assert awaited_rows(trace) == [(0, 40, 60, 1)]
    mine = [row for row in phases.run(trace).segments.iter_rows(named=True) if row["rank"] == 0]
    found = [(str(row["category"]), row["start_ns"], row["end_ns"]) for row in mine]
    assert ("wait", 40, 60) in found
    assert ("transfer", 60, 80) in found


def test_a_wait_for_messages_as_well_is_none_for_a_send() -> None:
    """It may have been buffered long ago."""
    rows = [
        message("send", 0, 1, 20, 80, thread=1),
        message("recv", 0, 1, 20, 80, thread=1, seq=7),
        span(0, "wait", 40, 80, **WAIT),
        message("recv", 1, 0, 60, 80),
        message("send", 1, 0, 70, 75, seq=7),
    ]
    assert awaited_rows(run(*rows)) == [(0, 40, 70, 1)]


def test_a_receive_in_flight_is_awaited_in_the_wait_for_it() -> None:
    """Before, its thread works; what was sent meanwhile is waited for by no rank."""
    waits = [span(0, "wait", 40, 50, **WAIT), span(0, "wait", 70, 95, **WAIT)]
    rows = [
        message("recv", 0, 1, 10, 50, seq=0, thread=1),
        message("send", 1, 0, 30, 32, seq=0),
        message("recv", 0, 1, 60, 95, seq=1, thread=1),
        message("send", 1, 0, 90, 92, seq=1),
    ]
    assert awaited_rows(run(*rows, *waits)) == [(0, 70, 90, 1)]


def test_a_send_in_flight_waits_for_nobody() -> None:
    """The thread goes on during the send, for any recorded end of it."""
    trace = run(message("send", 0, 1, 20, 90, thread=1), message("recv", 1, 0, 60, 75))
    assert awaited_rows(trace) == []


def test_messages_that_belong_together() -> None:
    """By tag and number; the second message is not the first one's other side."""
    rows = [
        message("recv", 0, 1, 10, 50, seq=0),
        message("recv", 0, 1, 60, 95, seq=1),
        message("send", 1, 0, 40, 45, seq=0),
        message("send", 1, 0, 90, 92, seq=1),
    ]
    assert awaited_rows(run(*rows)) == [(0, 10, 40, 1), (0, 60, 90, 1)]


def test_hops_of_a_collective_are_no_messages_of_the_program() -> None:
    """Who is waited for there is what the collective shows."""
    rows = [
        call(0, 0, 20, 80, **RING),
        call(1, 0, 50, 80, **RING),
        message("recv", 0, 1, 22, 78),
        message("send", 1, 0, 60, 65),
    ]
    trace = run(*rows)
    assert trace.program_messages.is_empty()
    assert awaited_rows(trace) == []
