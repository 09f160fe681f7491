"""Calls of a collective are matched by communicator and number; waits end at the last arrival."""

from dataclasses import replace
from typing import Any

import polars as pl
from polars.testing import assert_frame_equal
from support.runs.scenarios import HEALTHY
from support.runs.traces import call, trace_of

from tracelens.align import collectives
from tracelens.load import prepare
from tracelens.model.trace import Alignment, HostClock, Note, Trace
from tracelens.simulator.synthetic import generate


def match_calls(rows: list[dict[str, Any]], ranks: int = 2, **more: Any) -> Trace:
    return collectives.match_calls(trace_of(rows, ranks=ranks).with_(**more))


def waits(trace: Trace) -> list[tuple[Any, ...]]:
    return trace.arrivals.sort("seq", "rank").select("rank", "seq", "wait_ns", "transfer_ns").rows()


def test_waits_end_at_the_last_arrival_and_the_rest_is_transfer() -> None:
    """Who comes first waits for who comes last; the rest is transfer."""
    trace = match_calls([call(0, 0, 100, 200), call(1, 0, 160, 205)])
    assert waits(trace) == [(0, 0, 60, 40), (1, 0, 0, 45)]
    assert trace.arrivals["last_rank"].to_list() == [1, 1]
    assert trace.arrivals["last_arrival_ns"].to_list() == [160, 160]


def test_order_of_files_does_not_matter() -> None:
    """Matching depends on numbers, not on the order in which events stand."""
    raw = generate(HEALTHY)
    shuffled = raw.events.collect().sample(fraction=1.0, shuffle=True, seed=1)
    first, second = prepare(raw).arrivals, prepare(raw.with_(events=shuffled.lazy())).arrivals
    key = ["communicator", "seq", "rank"]
    assert_frame_equal(first.sort(key), second.sort(key))


def test_a_call_that_a_recording_rank_never_enters_is_a_hang() -> None:
    """If a rank that recorded never came, nobody waited for a known time, and it is named."""
    trace = match_calls([call(0, 0, 100, 200), call(1, 0, 160, 205), call(0, 1, 300, None)])
    hanging = trace.arrivals.filter(pl.col("seq") == 1)
    assert hanging.select("last_arrival_ns", "last_rank", "wait_ns").rows() == [(None, 1, None)]
    assert hanging.select("arrived", "expected").rows() == [(1, 2)]


def test_a_completed_call_with_a_lost_record_keeps_its_waits() -> None:
    """If a call was completed though a rank's record of it is lost, the others' waits stand."""
    trace = match_calls([call(0, 0, 100, 200), call(1, 0, 150, 200)], ranks=3)
    assert waits(trace) == [(0, 0, 50, 50), (1, 0, 0, 50)]
    assert trace.arrivals["arrived"].to_list() == [2, 2]
    assert trace.arrivals["expected"].to_list() == [3, 3]


def test_a_missing_file_gives_lower_bounds_instead_of_a_hang() -> None:
    """A rank without a readable file leaves a lower bound for the others, not a hang."""
    rows = [call(0, 0, 100, None), call(1, 0, 150, None)]
    trace = trace_of(rows, ranks=3)
    without = trace.with_(processes=trace.processes.filter(pl.col("rank") < 2))
    assert collectives.match_calls(without).arrivals["last_rank"].to_list() == [1, 1]


def test_a_truncated_file_is_not_missing_from_later_calls() -> None:
    """Nor does a rank whose file was cut off count as missing after its end."""
    rows = [call(0, 0, 100, None), call(1, 0, 150, None)]
    cut = Note("process-2", "cut", kind="truncated")
    assert match_calls(rows, ranks=3, notes=(cut,)).arrivals["last_rank"].to_list() == [1, 1]


def test_other_op_is_desync() -> None:
    """Different ops under one number: named at the first divergence, and no waits from there on."""
    rows = [
        call(rank, seq, 100 * seq + rank, 100 * seq + 50) for rank in (0, 1) for seq in range(4)
    ]
    rows[6] |= {"op": "broadcast"}  # rank 1, call 2
    trace = match_calls(rows)
    assert [row[2] for row in waits(trace)] == [1, 0, 1, 0, None, None, None, None]
    assert trace.arrivals.filter(pl.col("seq") == 2)["last_rank"].to_list() == [None, None]
    (note,) = trace.notes
    assert note.kind == "desync"
    assert "'world' at call 2" in note.sentence
    assert "allreduce of 8 bytes on rank 0, but broadcast on rank 1" in note.sentence


def test_other_bucket_is_desync() -> None:
    """Different buckets under one number are different calls."""
    trace = match_calls([call(0, 0, 10, 20, bucket=0), call(1, 0, 11, 20, bucket=1)])
    assert [note.kind for note in trace.notes] == ["desync"]
    assert "(bucket 1) on rank 1" in trace.notes[0].sentence


def test_other_size_spoils_only_that_call() -> None:
    """An allreduce of unequal sizes has no wait; the calls after it have."""
    rows = [
        call(0, 0, 10, 20),
        call(1, 0, 12, 20, bytes=16),
        call(0, 1, 30, 40),
        call(1, 1, 31, 40),
    ]
    trace = match_calls(rows)
    assert [row[2] for row in waits(trace)] == [None, None, 1, 0]
    assert [note.kind for note in trace.notes] == ["desync"]


def test_sizes_of_a_gather_may_differ() -> None:
    """Ops whose ranks may give different amounts are not compared by size."""
    rows = [call(rank, 0, 10 + rank, 20, op="gather", bytes=8 * rank) for rank in (0, 1)]
    assert match_calls(rows).notes == ()


def test_a_rank_outside_of_a_communicator_is_a_desync() -> None:
    """A rank that is not a member is a desync, not a guess."""
    rows = [call(rank, 0, 10 + rank, 20) for rank in (0, 1, 2)]
    trace = trace_of(rows, ranks=3)
    pair = trace.communicators.with_columns(ranks=pl.Series([[0, 1]], dtype=pl.List(pl.Int32)))
    assert [n.kind for n in collectives.match_calls(trace.with_(communicators=pair)).notes] == [
        "desync"
    ]


def test_broadcast_waits_for_its_root_alone() -> None:
    """With the root known (as peer), the root waits for nobody and the others only for it."""
    starts, ends = (120, 100, 180), (130, 140, 190)
    rows = [call(r, 0, starts[r], ends[r], op="broadcast", peer=0) for r in range(3)]
    assert waits(match_calls(rows, ranks=3)) == [(0, 0, 0, 10), (1, 0, 20, 20), (2, 0, 0, 10)]


def test_children_are_not_matched() -> None:
    """Only the main process of a rank takes part."""
    trace = trace_of([call(0, 0, 10, 20), call(1, 0, 15, 20)], ranks=2, main=[True, False])
    assert collectives.match_calls(trace).arrivals["process"].to_list() == [0]


def test_slow_rank_costs_what_was_planted() -> None:
    """On a simulated run, waits add up to what the causes say."""
    trace = prepare(generate(replace(HEALTHY, overlap=False, buckets=1)))
    spans = trace.spans.filter(pl.col("kind") == "backprop").collect()
    last = pl.col("end_ns").max().over("step")
    expected = spans.select("rank", "step", wait_ns=last - pl.col("end_ns")).sort("step", "rank")
    assert_frame_equal(trace.arrivals.select("rank", "step", "wait_ns"), expected)


def test_exits_before_the_last_arrival_are_reported() -> None:
    """Exits before the last arrival mean that the clocks, or the matches, are wrong: it is said."""
    rows = [call(0, 0, 100, 140), call(1, 0, 160, 205)]
    (note,) = match_calls(rows).notes
    assert note.kind == "clock"
    assert (
        "1 of 1 collectives a rank left before the last had come, by up to 20 ns" in note.sentence
    )
    unsure = Alignment("wall", (HostClock("host", "boot", 0, 0.0, 10),))
    assert match_calls(rows, alignment=unsure).notes == ()
