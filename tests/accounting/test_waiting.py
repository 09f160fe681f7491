"""Communication that nothing hides is waiting until all have come, queueing, or transfer."""

from dataclasses import replace
from typing import Any

import polars as pl
from support.runs.scenarios import HOT_SHARD, SLOW_BACKPROP
from support.runs.traces import call, span, trace_of

from tracelens.accounting import phases
from tracelens.load import prepare
from tracelens.simulator.synthetic import Scenario, generate

BLOCKED = {"thread": 0}


def segments_of_rank_0(
    rows: list[dict[str, Any]], ranks: int = 2, shards: int = 0
) -> list[tuple[Any, ...]]:
    """Return rank 0's pieces of a step from 0 to 100."""
    steps = [span(rank, "step", 0, 100, step=0) for rank in range(ranks)]
    accounted = phases.run(prepare(trace_of([*steps, *rows], ranks=ranks, shards=shards)))
    of_rank_0 = accounted.segments.filter(pl.col("rank") == 0)
    return of_rank_0.select(pl.col("category").cast(pl.String), "start_ns", "end_ns").rows()


def test_a_blocking_collective_waits_until_the_last_arrival() -> None:
    """A blocking collective is waiting until the last arrival and transfer after it."""
    rows = [call(0, 0, 20, 80, **BLOCKED), call(1, 0, 50, 80, **BLOCKED)]
    assert segments_of_rank_0(rows)[1:3] == [("wait", 20, 50), ("transfer", 50, 80)]


def test_work_hides_communication_in_flight() -> None:
    """What own work hides is own work; what sticks out is split."""
    rows = [
        span(0, "backprop", 0, 40),
        span(0, "wait", 40, 90),
        call(0, 0, 10, 90),
        call(1, 0, 60, 90),
    ]
    assert segments_of_rank_0(rows)[:3] == [
        ("backprop", 0, 40),
        ("wait", 40, 60),
        ("transfer", 60, 90),
    ]


def test_communication_in_flight_explains_unrecorded_time() -> None:
    """Where the code's waiting is not recorded, what is in flight explains it."""
    rows = [span(0, "backprop", 0, 40), call(0, 0, 10, 90), call(1, 0, 60, 90)]
    assert segments_of_rank_0(rows) == [
        ("backprop", 0, 40),
        ("wait", 40, 60),
        ("transfer", 60, 90),
        ("uninstrumented", 90, 100),
    ]


def test_messages_inside_a_reduction_wait_as_the_reduction_does() -> None:
    """A ring written with sends inside a matched reduction waits as the reduction does."""
    ring = {"algorithm": "ring", **BLOCKED}
    rows = [
        call(0, 0, 20, 80, **ring),
        span(0, "reduction", 22, 40, op="send", depth=1),
        span(0, "reduction", 40, 78, op="recv", depth=1),
        call(1, 0, 50, 80, **ring),
    ]
    assert segments_of_rank_0(rows)[1:-1] == [("wait", 20, 50), ("transfer", 50, 80)]


def test_user_code_inside_a_reduction_is_part_of_it() -> None:
    """Adding up received parts inside a reduction is part of it."""
    rows = [call(0, 0, 20, 80, **BLOCKED), span(0, "user", 60, 70, depth=1)]
    assert segments_of_rank_0(rows, ranks=1)[1:-1] == [
        ("transfer", 20, 60),
        ("transfer", 60, 70),
        ("transfer", 70, 80),
    ]


def test_user_code_during_communication_is_work() -> None:
    """A user's span outside of any phase is work, also while something is in flight."""
    rows = [span(0, "user", 10, 60), call(0, 0, 0, 60)]
    assert segments_of_rank_0(rows, ranks=1)[1] == ("user", 10, 60)


def test_a_collective_that_a_rank_never_joins_is_waiting_to_the_end() -> None:
    rows = [call(0, 0, 30, None, **BLOCKED)]
    assert segments_of_rank_0(rows)[-1] == ("wait", 30, 100)


def test_desync_is_waiting() -> None:
    """In calls of different operations nothing is transferred: ranks wait for what never comes."""
    rows = [call(0, 0, 30, 90, **BLOCKED), call(1, 0, 60, 90, op="broadcast", **BLOCKED)]
    assert segments_of_rank_0(rows)[1] == ("wait", 30, 90)


def test_a_collective_not_entered_by_all_makes_the_time_waiting() -> None:
    """Of two collectives in flight, one not yet entered by all makes it waiting."""
    rows = [call(0, 0, 10, 90), call(1, 0, 10, 90), call(0, 1, 20, 90), call(1, 1, 60, 90)]
    assert [row[:2] for row in segments_of_rank_0(rows)[1:4]] == [
        ("transfer", 10),
        ("wait", 20),
        ("transfer", 60),
    ]


def test_a_recorded_wait_without_communication_is_waiting() -> None:
    """A recorded wait beneath which nothing else is recorded is waiting."""
    assert segments_of_rank_0([span(0, "wait", 10, 60)], ranks=1)[1] == ("wait", 10, 60)


def test_a_rank_without_work_is_idle() -> None:
    """Who has been given nothing to do is idle, of known cause: no rank is awaited."""
    assert segments_of_rank_0([span(0, "wait", 10, 60, op="launch")], ranks=1)[1] == (
        "idle",
        10,
        60,
    )


def test_pauses_and_device_waits_are_idle() -> None:
    """Empty time with a pause of the process, or in which the thread waits for its device, is idle."""
    rows = [
        span(0, "gc", 10, 20, thread=2),
        span(0, "device", 30, 40),
        span(0, "device", 50, 55, device_start_ns=60, device_duration_ns=10),
    ]
    found = segments_of_rank_0(rows, ranks=1)
    assert [row[1:] for row in found if row[0] == "idle"] == [(10, 20), (30, 40), (50, 55)]
    assert [row[1:] for row in found if row[0] == "user"] == [(60, 70)]  # the device's own work


def test_elastic_averaging_is_queue_update_and_transfer() -> None:
    """Waiting for one's turn is a server's queue, an elastic update is an update, the rest transfer."""
    ops = ("turn_wait", "weights_down", "worker_update")
    rows = [span(0, "elastic", 10 * i, 10 * i + 10, op=op) for i, op in enumerate(ops)]
    assert [row[0] for row in segments_of_rank_0(rows, ranks=1)] == [
        "ps_queue",
        "transfer",
        "update",
        "uninstrumented",
    ]


def test_a_push_that_is_not_served_yet_is_queued() -> None:
    """A push that has arrived at the shard but is not served yet is in its queue."""
    on_shard: dict[str, Any] = {"process": 1, "role": "ps", "request": 7}
    rows = [
        span(0, "ps", 10, 90, op="push", request=7),
        span(0, "ps", 15, 30, op="receive", **on_shard),
        span(0, "ps", 50, 80, op="aggregate", **on_shard),
    ]
    assert segments_of_rank_0(rows, ranks=1, shards=1)[1:4] == [
        ("transfer", 10, 30),
        ("ps_queue", 30, 50),
        ("transfer", 50, 90),
    ]


def test_pull_waits_for_later_pushes() -> None:
    """A pull that is answered only after later pushes is in the queue until then."""
    accounted = phases.run(prepare(generate(HOT_SHARD)))
    waiting = accounted.segments.filter(
        pl.col("name") == "wait_pull", pl.col("category") == "ps_queue"
    )
    assert waiting.height > 0
    shares = accounted.times.group_by("category").agg(pl.col("ns").sum())
    by_name = dict(shares.select(pl.col("category").cast(pl.String), "ns").iter_rows())
    assert by_name["ps_queue"] > by_name["transfer"]


def test_the_slow_rank_waits_least() -> None:
    """On a simulated run the slow rank has the least waiting and the most own time."""
    found = phases.run(prepare(generate(SLOW_BACKPROP)))
    sums = found.times.group_by("rank", "category").agg(pl.col("ns").sum())
    waits = dict(sums.filter(pl.col("category") == "wait").select("rank", "ns").iter_rows())
    assert waits.get(2, 0) * 10 < min(waits[rank] for rank in (0, 1, 3))


def test_hidden_is_what_own_work_covers() -> None:
    """Hidden communication is counted per step, outside of the sum of categories."""
    scenario = Scenario(ranks=2, steps=20, noise=0.0, spread=0.0, exit_skew_us=0.0, buckets=2)
    hidden = phases.run(prepare(generate(scenario))).hidden_rows["ns"]
    assert hidden.to_list() == [1_000_000] * 40  # the first of two buckets, 1 ms each
    blocking = phases.run(prepare(generate(replace(scenario, overlap=False)))).hidden_rows["ns"]
    assert blocking.to_list() == [0] * 40
