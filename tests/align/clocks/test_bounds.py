"""Messages and collectives of a few ranks tie their clocks, through those that tie them best."""

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl
import pytest

from tracelens import Trace
from tracelens.align.clocks.bounds import order_by_certainty
from tracelens.align.clocks.requests import EXCHANGE_COLUMNS
from tracelens.model.clock_map import ClockMap

MS = 1_000_000
STEP = 100 * MS
WAY = 2 * MS  # of a message, and of a collective
LEADS = (0, 7_000 * MS, -90_000 * MS, 40 * MS)  # of each rank's clock


def span(rank: int, start: int, end: int, **more: Any) -> dict[str, Any]:
    """Return a row as the clock of its rank shows it."""
    lead = 10**12 + LEADS[rank]
    return {"rank": rank, "start_ns": start + lead, "end_ns": end + lead, **more}


def message(sender: int, receiver: int, sent: int, number: int) -> list[dict[str, Any]]:
    """Send to a rank that waits since long before."""
    shared = {"kind": "reduction", "communicator": f"{sender}-{receiver}", "seq": number}
    arrived = sent + WAY
    return [
        span(sender, sent, arrived, op="send", peer=receiver, **shared),
        span(receiver, sent - 5 * MS, arrived, op="recv", peer=sender, **shared),
    ]


def allreduce(ranks: Sequence[int], ready: int, number: int) -> list[dict[str, Any]]:
    """Let each rank come 1 ms after the one before."""
    shared = {"kind": "reduction", "op": "allreduce", "seq": number}
    name, end = f"group {ranks}", ready + len(ranks) * MS + WAY
    return [
        span(rank, ready + index * MS, end, communicator=name, **shared)
        for index, rank in enumerate(ranks)
    ]


def pipeline(*, backward: bool) -> Iterator[dict[str, Any]]:
    """Pass activations down four stages, and gradients up again."""
    for step in range(40):
        begin_ns = step * STEP
        for stage in range(3):
            yield from message(stage, stage + 1, begin_ns + (stage + 1) * 10 * MS, step)
            if backward:
                yield from message(stage + 1, stage, begin_ns + (8 - stage) * 10 * MS, step)
        for stage in range(4):
            yield span(stage, begin_ns, begin_ns + STEP, kind="step", step=step)


def overlapping_groups() -> Iterator[dict[str, Any]]:
    """Reduce in rows and columns of a square of four ranks; no group holds more than two."""
    for step in range(40):
        begin_ns = step * STEP
        for group_index, ranks in enumerate([(0, 1), (2, 3), (0, 2), (1, 3)]):
            yield from allreduce(ranks, begin_ns + (20 + group_index // 2 * 30) * MS, step)
        for rank in range(4):
            yield span(rank, begin_ns, begin_ns + STEP, kind="step", step=step)


def largest_error_ns(trace: Trace) -> int:
    """Return the largest distance of a step's begin on the common clock from the truth."""
    steps = trace.steps.sort("step", "rank")
    true = 10**12 + LEADS[0] + steps["step"].cast(pl.Int64) * STEP
    error = (steps["start_ns"] - true).abs().max()
    assert isinstance(error, int)
    return error


@pytest.mark.parametrize("rows", [[*pipeline(backward=True)], [*overlapping_groups()]])
def test_every_clock_is_tied(rows: list[dict[str, Any]]) -> None:
    """Each to within half of a window, and what the clocks between are uncertain."""
    trace = Trace.from_table(pl.DataFrame(rows, infer_schema_length=None))
    assert trace.alignment.untied_clock_domains == ()
    assert largest_error_ns(trace) <= trace.alignment.uncertainty_ns <= 3 * 3 * WAY


def test_every_message_is_matched() -> None:
    """As it cannot be between clocks that nothing ties together."""
    rows = pl.DataFrame(list(pipeline(backward=True)), infer_schema_length=None)
    trace = Trace.from_table(rows)
    assert trace.alignment.method == "messages"
    assert trace.matched_messages.height == 40 * 6


def test_messages_in_one_direction_tie_nothing() -> None:
    """They bound the difference of two clocks from one side only."""
    rows = pl.DataFrame(list(pipeline(backward=False)), infer_schema_length=None)
    assert Trace.from_table(rows).alignment.method == "unaligned"


def exchange_of_width(clock: int, peer: int, width_ns: int) -> dict[str, Any]:
    """Return an exchange that leaves so wide a window."""
    times = {"sent": 0, "arrived": width_ns, "returned": width_ns, "answered": width_ns}
    return {"clock": clock, "peer": peer, "replied": True, **times}


def test_clocks_are_tied_through_the_most_certain_ones() -> None:
    """Clock 3 shares a wide window with the first clock, and a narrow one with clock 2."""
    exchanges = pl.DataFrame(
        [
            exchange_of_width(0, 3, 1000),
            exchange_of_width(0, 1, 10),
            exchange_of_width(1, 2, 10),
            exchange_of_width(2, 3, 10),
            exchange_of_width(8, 9, 1),
        ],
        schema=EXCHANGE_COLUMNS,
    )
    assert order_by_certainty(exchanges, {0: ClockMap()}) == [1, 2, 3]
    mapped = {0: ClockMap(), 2: ClockMap(uncertainty_ns=2000)}
    assert order_by_certainty(exchanges, mapped) == [1, 3]
