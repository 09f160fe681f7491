"""Simulated rings are made of messages: each has two ends, and a slow link is slow for itself only."""

from dataclasses import replace

import polars as pl
import pytest
from support.runs.analysed import trace

from tracelens.simulator.synthetic import Fault, Scenario

RING = Scenario(ranks=4, steps=6, hops=True, buckets=2, noise=0.0, exit_skew_us=0.0)


def messages(scenario: Scenario) -> pl.DataFrame:
    """Return all sends and receives."""
    return trace(scenario).spans.filter(pl.col("op").is_in(["send", "recv"])).collect()


@pytest.mark.parametrize("overlap", [True, False])
def test_every_message_has_two_ends(*, overlap: bool) -> None:
    """Each of 2 (n - 1) hops a reduction, on every rank, is sent once and received once."""
    ends = messages(replace(RING, overlap=overlap))
    sends, receives = (ends.filter(pl.col("op") == op) for op in ("send", "recv"))
    assert sends.height == receives.height == 6 * 2 * 6 * 4
    matched = sends.join(
        receives, left_on=["rank", "peer", "seq"], right_on=["peer", "rank", "seq"]
    )
    assert matched.height == sends.height
    begun = matched.select(pl.max_horizontal("start_ns", "start_ns_right")).to_series()
    through = matched.select(pl.min_horizontal("end_ns", "end_ns_right")).to_series()
    assert (through - begun).min() > 0  # type: ignore[operator]  # a column of numbers


@pytest.mark.parametrize("overlap", [True, False])
def test_a_ring_takes_what_was_asked(*, overlap: bool) -> None:
    """Without noise a reduction lasts as long as one that is not played hop by hop."""
    for hops in (True, False):
        arrivals = trace(replace(RING, overlap=overlap, hops=hops)).arrivals
        assert arrivals["transfer_ns"].to_numpy() == pytest.approx(1_000_000, abs=20)


def test_messages_lie_within_reductions() -> None:
    """No message begins before its rank's reduction, or ends after it."""
    spans = trace(RING).spans.filter(pl.col("kind") == "reduction").collect()
    hops = pl.col("op").is_in(["send", "recv"])
    around = spans.filter(~hops).select("rank", "step", "bucket", begin="start_ns", until="end_ns")
    messages_inside = spans.filter(hops).join_where(
        around.rename({"rank": "r", "step": "s"}),
        pl.col("rank") == pl.col("r"),
        pl.col("step") == pl.col("s"),
        pl.col("start_ns") >= pl.col("begin"),
        pl.col("end_ns") <= pl.col("until"),
    )
    assert messages_inside.height == spans.filter(hops).height


def test_a_slow_link_slows_the_ring() -> None:
    """Four times slower on one link is four times slower for all, with hops recorded or not."""
    slow = Fault("link", (1,), factor=4.0)
    for hops in (True, False):
        arrivals = trace(replace(RING, hops=hops, faults=(slow,))).arrivals
        assert arrivals["transfer_ns"].median() == pytest.approx(4_000_000, rel=0.1)
