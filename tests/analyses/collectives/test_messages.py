"""A message lasts from when both sides are ready to when it is received, not as long as its calls."""

from typing import Any

import pytest
from support.runs.traces import WORLD, span, trace_of

from tracelens.accounting.communication import transfers
from tracelens.align.steps import divide_into_steps


def _end(op: str, rank: int, start_ns: int, end_ns: int) -> dict[str, Any]:
    return span(
        rank,
        "reduction",
        start_ns,
        end_ns,
        op=op,
        peer=1 - rank,
        seq=0,
        key=0,
        bytes=1024,
        communicator=WORLD,
        step=0,
    )


def _measure_transfer(sent: tuple[int, int], received: tuple[int, int]) -> list[int]:
    """Return the duration of a message from rank 0 to rank 1, given begin and end of its two calls."""
    steps = [span(rank, "step", 0, 10**6, step=0) for rank in range(2)]
    rows = [*steps, _end("send", 0, *sent), _end("recv", 1, *received)]
    return transfers.list_messages(divide_into_steps(trace_of(rows, 2)))["link_ns"].to_list()


@pytest.mark.parametrize(
    ("sent", "received", "taken"),
    [
        ((100_000, 300_000), (150_000, 300_000), 150_000),  # both there: until both go on
        ((100_000, 300_000), (290_000, 300_000), 10_000),  # a late receiver makes no slow link
        ((290_000, 300_000), (100_000, 300_000), 10_000),  # nor does a late sender
        ((100_000, 110_000), (200_000, 700_000), 500_000),  # buffered: the sender goes on at once
    ],
    ids=["together", "late receiver", "late sender", "buffered"],
)
def test_transfer_time_is_counted_from_when_both_sides_are_ready(
    sent: tuple[int, int], received: tuple[int, int], taken: int
) -> None:
    assert _measure_transfer(sent, received) == [taken]
