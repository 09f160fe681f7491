"""Work on other threads and streams is replayed like that of the training thread."""

from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest

from tracelens import Trace
from tracelens.verdicts.whatif import whatif

MS = 1_000_000
STEPS, STEP = 40, 40 * MS
FORWARD, BACKPROP, WAY = 5 * MS, 10 * MS, MS // 2


def span(rank: int, start: int, end: int, **more: Any) -> dict[str, Any]:
    return {"rank": rank, "start_ns": start, "end_ns": end, **more}


def two_stages(thread: str, noted_later_ns: int) -> Iterator[dict[str, Any]]:
    """Pass an activation to the second stage and a gradient back in each step.

    Receives run on `thread`, and end `noted_later_ns` after the training thread went on.
    """
    for step in range(STEPS):
        begin_ns = step * STEP
        handed_on_ns = begin_ns + FORWARD
        answered = handed_on_ns + WAY + FORWARD + BACKPROP
        for rank in (0, 1):
            yield span(rank, begin_ns, begin_ns + STEP, kind="step", step=step, thread="main")
        yield span(0, begin_ns, handed_on_ns, kind="forward", thread="main")
        yield span(
            1, handed_on_ns + WAY, handed_on_ns + WAY + FORWARD, kind="forward", thread="main"
        )
        yield span(1, handed_on_ns + WAY + FORWARD, answered, kind="backprop", thread="main")
        yield span(0, answered + WAY, begin_ns + STEP, kind="backprop", thread="main")
        for sender, receiver, sent_ns, waits_since in (
            (0, 1, handed_on_ns, begin_ns),
            (1, 0, answered, handed_on_ns),
        ):
            shared = {"kind": "reduction", "communicator": "pipe", "seq": step}
            yield span(sender, sent_ns, sent_ns, op="send", peer=receiver, thread="main", **shared)
            end = sent_ns + WAY + noted_later_ns
            yield span(receiver, waits_since, end, op="recv", peer=sender, thread=thread, **shared)


@pytest.mark.parametrize(
    ("thread", "noted_later_ns"), [("main", 0), ("receives", 0), ("receives", 2000)]
)
def test_a_faster_stage_shortens_the_steps(thread: str, noted_later_ns: int) -> None:
    """By half of its computation: the other stage waits meanwhile."""
    rows = pl.DataFrame(list(two_stages(thread, noted_later_ns)), infer_schema_length=None)
    result = whatif(Trace.from_table(rows, one_clock=True), "rank:1/2")
    assert result.identity.is_reliable
    saved = result.answers[0].saving * STEP
    assert saved == pytest.approx((FORWARD + BACKPROP) / 2, rel=0.02)


LATE = 20 * MS


def two_ranks(noted_later_ns: int) -> Iterator[dict[str, Any]]:
    """Reduce gradients on other threads, for which the training threads wait; rank 1's backprop is late.

    In every third step rank 0's reduction ends `noted_later_ns` after the thread went on.
    """
    for step in range(STEPS):
        begin_ns = step * STEP
        over = begin_ns + BACKPROP + LATE + MS
        shared = {"kind": "reduction", "op": "allreduce", "communicator": "all", "seq": step}
        for rank in (0, 1):
            computed = begin_ns + BACKPROP + rank * LATE
            noted = over + (noted_later_ns if rank == 0 and step % 3 == 1 else 0)
            yield span(rank, begin_ns, over + 2 * MS, kind="step", step=step, thread="main")
            yield span(rank, begin_ns, computed, kind="backprop", thread="main")
            yield span(rank, computed, noted, thread="reductions", **shared)
            yield span(rank, computed + 1000, over, kind="wait", thread="main")
            yield span(rank, over + 300_000, over + 2 * MS, kind="update", thread="main")


@pytest.mark.parametrize("noted_later_ns", [0, 1000, 3 * MS])
def test_a_late_callback_holds_nobody_up(noted_later_ns: int) -> None:
    """The wait ended when the call was over, though another thread noted that later."""
    rows = pl.DataFrame(list(two_ranks(noted_later_ns)), infer_schema_length=None)
    result = whatif(Trace.from_table(rows, one_clock=True), "rank:1=median")
    (answer,) = result.answers
    assert answer.before_ns - answer.after_ns == pytest.approx(LATE, rel=0.02)
