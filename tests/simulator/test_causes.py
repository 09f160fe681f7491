"""Waits, overlap and queues in a simulated run follow from its causes."""

from dataclasses import replace

import polars as pl
from polars.testing import assert_frame_equal
from support.runs.scenarios import BLOCKING, HEALTHY, HOT_SHARD, SLOW_BACKPROP

from tracelens.load import prepare
from tracelens.simulator.synthetic import generate


def test_same_seed_same_run() -> None:
    """A scenario is its run: generating twice gives the same events, another seed gives others."""
    run, run_again = (generate(HEALTHY).events.collect() for _ in range(2))
    assert_frame_equal(run, run_again)
    other = generate(replace(HEALTHY, seed=1)).events.collect()
    assert run["start_ns"].to_list() != other["start_ns"].to_list()


def test_nobody_leaves_before_the_last_has_come() -> None:
    """Every exit of a collective is after its last entry."""
    for scenario in (HEALTHY, BLOCKING, SLOW_BACKPROP):
        arrivals = prepare(generate(scenario)).arrivals
        assert arrivals.filter(pl.col("end_ns") <= pl.col("last_arrival_ns")).is_empty()


def test_slow_rank_makes_others_wait() -> None:
    """The rank with the slow phase comes last nearly always, and hardly waits itself."""
    arrivals = prepare(generate(SLOW_BACKPROP)).arrivals
    last_bucket = arrivals.filter(pl.col("bucket") == 1)
    assert (last_bucket["last_rank"] == 2).sum() > 0.95 * last_bucket.height
    waits = last_bucket.group_by("rank").agg(pl.col("wait_ns").sum())
    by_rank = dict(waits.iter_rows())
    assert by_rank[2] < 0.1 * min(by_rank[rank] for rank in (0, 1, 3))


def test_buckets_queue_behind_each_other() -> None:
    """On one link the transfers of a step follow each other."""
    busy = replace(HEALTHY, buckets=4, transfer_ms=6.0)
    trace = prepare(generate(busy))
    leaves = trace.arrivals.filter(pl.col("rank") == 0).sort("seq")
    gaps = leaves.select(pl.col("end_ns").diff().over("step"))["end_ns"].drop_nulls()
    assert (gaps > 5_000_000).all()


def test_shard_serves_one_request_at_a_time() -> None:
    """A shard's services never overlap, and none begins before its request is received."""
    spans = generate(HOT_SHARD).spans.filter(pl.col("role") == "ps").collect()
    served = spans.filter(pl.col("op").is_in(["aggregate", "apply", "reply"])).sort("start_ns")
    behind = served.select(pl.col("start_ns") - pl.col("end_ns").shift(1).over("shard"))
    assert (behind["start_ns"].drop_nulls() >= 0).all()
    received = spans.filter(pl.col("op") == "receive").select("request", received="end_ns")
    begun = served.drop_nulls("request").join(received, on="request", validate="1:1")
    assert begun.filter(pl.col("start_ns") < pl.col("received")).is_empty()
    assert begun.height == 2 * HOT_SHARD.ranks * HOT_SHARD.shards * HOT_SHARD.steps


def test_both_sides_of_a_request() -> None:
    """Every worker's request finds its shard's spans inside its own time."""
    spans = generate(HOT_SHARD).spans.filter(pl.col("request").is_not_null()).collect()
    asked_requests = spans.filter(pl.col("role") == "worker").select(
        "request", "start_ns", "end_ns"
    )
    answered = (
        spans.filter(pl.col("role") == "ps")
        .group_by("request")
        .agg(first=pl.col("start_ns").min(), last=pl.col("end_ns").max())
    )
    joined = asked_requests.join(answered, on="request", validate="1:1")
    assert joined.height == asked_requests.height == answered.height
    assert joined.filter(
        (pl.col("first") < pl.col("start_ns")) | (pl.col("last") > pl.col("end_ns"))
    ).is_empty()
