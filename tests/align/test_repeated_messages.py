"""Steps that nothing marks are found by the messages between ranks that come back."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.runs.traces import WORLD, span, trace_of

from tracelens.align import steps
from tracelens.model.trace import Trace

MS = 10**6
Message = tuple[str, int, int, float]  # op, other rank, tag, milliseconds of work before


def divide_messages(*ranks: Sequence[Message]) -> Trace:
    """Let each rank send and receive, each message a millisecond long, and look for steps."""
    rows: list[dict[str, Any]] = []
    for rank, messages in enumerate(ranks):
        begin_ns = 0
        for seq, (op, peer, tag, before_ms) in enumerate(messages):
            begin_ns += round(before_ms * MS)
            rows.append(
                span(
                    rank, "reduction", begin_ns, begin_ns + MS,
                    op=op, peer=peer, key=tag, seq=seq, communicator=WORLD, bytes=8,
                )
            )  # fmt: skip
            begin_ns += MS
    return steps.divide_into_steps(trace_of(rows, ranks=len(ranks)))


def starts_ms(trace: Trace, rank: int) -> list[float]:
    return [ns / MS for ns in trace.steps.filter(rank=rank)["start_ns"].to_list()]


def test_the_shortest_period_is_a_step() -> None:
    """Steps touch; what was before the second one is start-up."""
    mine: list[Message] = [("send", 1, 0, 9), ("recv", 1, 1, 0)] * 6
    other: list[Message] = [("recv", 0, 0, 3), ("send", 0, 1, 6)] * 6
    trace = divide_messages(mine, other)
    assert starts_ms(trace, 0) == starts_ms(trace, 1) == [11, 22, 33, 44, 55]
    assert trace.steps["end_ns"].to_list()[-1] == 66 * MS
    assert "the messages that they repeat" in trace.notes[0].sentence


def test_equal_messages_of_a_step_are_told_from_the_next_by_the_work_between() -> None:
    """As those of an all-reduce that is written by hand."""
    mine: list[Message] = [("send", 1, 0, work) for _ in range(8) for work in (20, 0.1, 0.1)]
    trace = divide_messages(mine, [("recv", 0, 0, work) for _, _, _, work in mine])
    assert len(starts_ms(trace, 0)) == len(starts_ms(trace, 1)) == 7


def test_micro_batches_are_no_steps() -> None:
    """Stages repeat different messages, all equally often."""
    first_stage: list[Message] = [*[("send", 1, 0, 5.0)] * 4, *[("recv", 1, 0, 5.0)] * 4]
    middle: list[Message] = [
        *[("recv", 0, 0, 1.0), ("send", 2, 0, 4.0)] * 4,
        *[("recv", 2, 0, 1.0), ("send", 0, 0, 4.0)] * 4,
    ]
    last: list[Message] = [*[("recv", 1, 0, 5.0)] * 4, *[("send", 1, 0, 5.0)] * 4]
    trace = divide_messages(first_stage * 9, middle * 9, last * 9)
    assert [len(starts_ms(trace, rank)) for rank in range(3)] == [8, 8, 8]


def test_a_server_takes_messages_in_any_order() -> None:
    """It has as many steps as those that it serves."""
    worker: list[Message] = [("send", 0, 7, 9.0), ("recv", 0, 8, 1.0)] * 40
    order = np.random.default_rng(3).permuted(np.tile([1, 2], (40, 1)), axis=1).ravel()
    server: list[Message] = [
        message
        for peer in order.tolist()
        for message in (("recv", peer, 7, 1.0), ("send", peer, 8, 1.0))
    ]
    trace = divide_messages(server, worker, worker)
    assert [len(starts_ms(trace, rank)) for rank in range(3)] == [39, 39, 39]


@pytest.mark.parametrize("times", [13, 20])
def test_those_whom_a_server_serves_may_take_their_own_pace(times: int) -> None:
    """The slower one has fewer steps, whether the server's messages are in no order or come back."""
    worker: list[Message] = [("send", 0, 7, 9.0), ("recv", 0, 8, 1.0)] * 40
    slow: list[Message] = [("send", 0, 7, 27.0), ("recv", 0, 8, 1.0)] * times
    order = [1, 1, 2] * times
    if times != 20:
        order = np.random.default_rng(3).permuted(np.repeat([1, 2], [40, times])).tolist()
    server: list[Message] = [
        message for peer in order for message in (("recv", peer, 7, 1.0), ("send", peer, 8, 1.0))
    ]
    trace = divide_messages(server, worker, slow)
    assert [len(starts_ms(trace, rank)) for rank in range(3)] == [39, 39, times - 1]


def test_what_does_not_come_back_is_no_step() -> None:
    """Nor is what comes back unequally often."""
    drawn = np.random.default_rng(5).integers(0, 1000, 60).tolist()
    mine: list[Message] = [("send", 1, tag, 5.0) for tag in drawn]
    other: list[Message] = [("recv", 0, tag, 5.0) for tag in drawn]
    for ranks in ((mine, other), ([("send", 1, 0, 5.0)] * 30, [("recv", 0, 0, 5.0)] * 20)):
        trace = divide_messages(*ranks)
        assert trace.steps["step"].unique().to_list() == [0]
        assert "the whole run counts as one" in trace.notes[0].sentence


def test_collectives_of_groups_repeat_as_messages_do() -> None:
    """Ranks 0 and 1, 2 and 3 meet three times a step, then 0 and 2, 1 and 3: no call is of all."""
    rows: list[dict[str, Any]] = []
    for rank in range(4):
        begin_ns, count = 0, {"row": 0, "column": 0}
        groups = {"row": f"row {rank // 2}", "column": f"column {rank % 2}"}
        for _ in range(10):
            for group in ("row", "row", "row", "column"):
                begin_ns += 5 * MS
                called: dict[str, Any] = {"op": "allreduce", "bytes": 8, "seq": count[group]}
                where = {"communicator": groups[group]}
                rows.append(span(rank, "reduction", begin_ns, begin_ns + MS, **called, **where))
                begin_ns += MS
                count[group] += 1
    trace = steps.divide_into_steps(trace_of(rows, ranks=4))
    assert [starts_ms(trace, rank) for rank in range(4)] == [[24.0 * n for n in range(1, 10)]] * 4
    assert "the collectives of groups that they repeat" in trace.notes[0].sentence
