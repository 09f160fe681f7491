"""What a replay predicts is what the same simulated run comes to, with the same random numbers."""

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from support.runs.analysed import trace as run
from support.runs.traces import call, span, trace_of
from support.samples import sample_trace
from support.tiers import mark_slow

import tracelens as tl
from tracelens.accounting import phases
from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.accounting.phases import job_ns
from tracelens.errors import InvalidArgument
from tracelens.load import prepare
from tracelens.model.trace import Trace
from tracelens.simulator.algorithms import count_messages_and_payloads
from tracelens.simulator.synthetic import Fault, Scenario, duration_ns
from tracelens.verdicts.whatif import whatif

BASE = Scenario(
    ranks=6,
    steps=60,
    seed=3,
    noise=0.03,
    buckets=6,
    bucket_sizes=tuple(1 << power for power in (16, 18, 19, 20, 21, 22)),
    transfer_ms=1.5,
    message_ms=0.3,
)
BLOCKING = replace(BASE, overlap=False)
SERVERS = replace(
    BASE, shards=2, shard_bytes=(6 << 20, 2 << 20), aggregate_gbytes_per_s=2.0, link_gbytes_per_s=3
)
MS = 10**6
CLOSE, NOISE = 0.06, 0.002  # of the saving; of the run


def faulty(scenario: Scenario, phase: str, **how: object) -> Scenario:
    return replace(scenario, faults=(Fault(phase, (2,), **how),))  # type: ignore[arg-type]


def scenario_by(algorithm: str, ranks: int, *, overlap: bool = True) -> Scenario:
    """Return a run whose allreduces send the messages of an algorithm."""
    messages, payloads = count_messages_and_payloads(algorithm, ranks)
    sent = {"transfer_ms": payloads * 1.0, "message_ms": messages * 0.05}
    return replace(BASE, ranks=ranks, overlap=overlap, **sent)  # type: ignore[arg-type]


CASES = {
    "slow forward": (faulty(BASE, "forward", factor=1.6), BASE, ("rank:2=median",)),
    "slow backprop": (faulty(BLOCKING, "backprop", factor=1.6), BLOCKING, ("rank:2=median",)),
    "slow for a while, by phase": (
        faulty(BASE, "forward", factor=2.0, steps=(10, 39)),
        BASE,
        ("rank:2,phase:forward=median",),
    ),
    "stalls": (faulty(BASE, "data", extra_ms=30, every=10), BASE, ("rank:2=median",)),
    "no loader": (BASE, replace(BASE, data_ms=1e-9), ("phase:data=0",)),
    "a quicker loader": (BASE, replace(BASE, data_ms=0.5), ("phase:data/2",)),
    "bandwidth": (BASE, replace(BASE, transfer_ms=0.75), ("bandwidth*2",)),
    "bandwidth, blocking": (BLOCKING, replace(BLOCKING, transfer_ms=4.5), ("bandwidth/3",)),
    "latency": (BLOCKING, replace(BLOCKING, message_ms=0.15), ("latency/2",)),
    "no overlap": (BASE, BLOCKING, ("overlap=off",)),
    "overlap": (BLOCKING, BASE, ("overlap=on",)),
    "overlap with half the backprop": (
        BLOCKING,
        replace(BASE, backprop_ms=BASE.backprop_ms / 2),
        ("phase:backprop/2", "overlap=on"),
    ),
    "overlap of long transfers, with a straggler": (
        faulty(replace(BLOCKING, transfer_ms=3), "forward", factor=1.6),
        faulty(replace(BASE, transfer_ms=3), "forward", factor=1.6),
        ("overlap=on",),
    ),
    "a tree": (scenario_by("ring", 6), scenario_by("tree", 6), ("algorithm=tree",)),
    "recursive doubling": (
        scenario_by("ring", 6, overlap=False),
        scenario_by("recursive_doubling", 6, overlap=False),
        ("algorithm=recursive-doubling",),
    ),
    "one server instead of a ring": (
        scenario_by("ring", 6),
        scenario_by("ps", 6),
        ("algorithm=ps",),
    ),
    "four times the ranks": (scenario_by("ring", 6), scenario_by("ring", 24), ("ranks=24",)),
    "twice the ranks, blocking": (
        scenario_by("ring", 6, overlap=False),
        scenario_by("ring", 12, overlap=False),
        ("ranks=12",),
    ),
    "four times the workers of servers": (SERVERS, replace(SERVERS, ranks=24), ("ranks=24",)),
    "two at once": (
        faulty(BLOCKING, "forward", factor=1.6),
        replace(BLOCKING, transfer_ms=0.75),
        ("rank:2=median", "bandwidth*2"),
    ),
    "servers' links": (SERVERS, replace(SERVERS, link_gbytes_per_s=6), ("bandwidth*2",)),
    "bytes dealt out": (
        SERVERS,
        replace(SERVERS, shard_bytes=(4 << 20,) * 2),
        ("placement=chunked",),
    ),
    "more shards": (
        SERVERS,
        replace(SERVERS, shards=4, shard_bytes=(2 << 20,) * 4),
        ("shards=4",),
    ),
    "one server": (
        SERVERS,
        replace(SERVERS, shards=1, shard_bytes=(8 << 20,)),
        ("arrangement=central",),
    ),
    "a server for each worker": (
        SERVERS,
        replace(SERVERS, shards=BASE.ranks, shard_bytes=((8 << 20) // BASE.ranks,) * BASE.ranks),
        ("arrangement=sharded",),
    ),
    "nothing": (BASE, BASE, ("rank:0*1",)),
}


QUICK_CASES = (
    "slow for a while, by phase",
    "no loader",
    "bandwidth, blocking",
    "latency",
    "overlap",
    "recursive doubling",
    "twice the ranks, blocking",
    "two at once",
    "bytes dealt out",
    "more shards",
    "one server",
)


@pytest.mark.parametrize("case", mark_slow(CASES, quick=QUICK_CASES))
def test_saving_is_the_true_one(case: str) -> None:
    """The saving is that of the run in which it is really so, and its interval holds it."""
    before, after, edits = CASES[case]
    recorded = run(before)
    truth = 1 - duration_ns(after) / duration_ns(before)
    result = whatif(recorded, *edits)
    (answer,) = result.answers
    assert result.identity.is_reliable
    assert answer.saving == pytest.approx(truth, rel=CLOSE, abs=NOISE)
    assert answer.interval[0] <= answer.saving <= answer.interval[1]


def test_what_is_absorbed_saves_nothing() -> None:
    """A late rank whose delay ends under reductions in flight costs nothing, and is said so."""
    slow = replace(BASE, transfer_ms=12.0)  # the last bucket is long under way after the update
    late = faulty(slow, "backprop", factor=1.1)
    truth = 1 - duration_ns(slow) / duration_ns(late)
    (answer,) = whatif(run(late), "rank:2=median").answers
    assert answer.saving == pytest.approx(truth, abs=NOISE)


def test_all_ranks_single_edits() -> None:
    """With ``all``, every edit has an answer or a reason, the largest saving first."""
    result = whatif(run(faulty(BASE, "forward", factor=2.0)), "all")
    savings = [answer.saving for answer in result.answers]
    assert savings == sorted(savings, reverse=True)
    assert {"rank:2=median", "bandwidth*2", "phase:data=0"} <= {
        answer.edits[0] for answer in result.answers
    }
    assert dict(result.refused)["message_cost/2"].startswith("this needs services")


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        ("faster", "no edit that is known"),
        ("rank:9=median", "rank 9 is none of 0 to 5"),
        ("phase:lunch=0", "phase lunch is none of data, forward"),
        ("message_cost/2", "services of parameter servers"),
        ("bandwidth*0", "expected one above 0"),
        ("buckets=1KiB", "they can only be joined"),
        ("buckets=many", "no number of bytes"),
        ("shards=4", "needs parameter servers"),
        ("placement=best", "none of round_robin, greedy"),
        ("ranks=1", "expected at least two"),
        ("algorithm=star", "none of ring, tree"),
        ("overlap=on", "all of its reductions are in flight beside backprop already"),
        ("background=many", "no number of bytes"),
        ("async=on", "servers that join the gradients"),
        ("arrangement=central", "needs parameter servers"),
        ("arrangement=separate", "not recorded"),
    ],
)
def test_edits_without_an_answer_are_refused(edit: str, why: str) -> None:
    """What a trace cannot answer is refused with one sentence."""
    with pytest.raises(InvalidArgument, match=why):
        whatif(run(replace(BASE, steps=12)), edit)


def blocking_steps(kind_of_work: str) -> Trace:
    """Average a loss, work, and reduce two gradients."""
    work = [("forward", 2, 12), (kind_of_work, 12, 50)]
    rows = []
    for step in range(12):
        begin_ns = step * 100 * MS
        for rank in range(2):
            of_rank: dict[str, Any] = {"rank": rank, "thread": "main"}
            rows.append(of_rank | {"kind": "step", "step": step} | times_between(begin_ns, 0, 90))
            rows += [
                of_rank | {"kind": kind} | times_between(begin_ns, *times) for kind, *times in work
            ]
            for number, times in enumerate([(0, 2), (50, 60), (60, 70)]):
                reduction = {"kind": "reduction", "op": "allreduce", "communicator": "world"}
                sized = {"seq": 3 * step + number, "bytes": 1 << 20}
                rows.append(of_rank | reduction | sized | times_between(begin_ns, *times))
    return tl.Trace.from_table(pl.DataFrame(rows, infer_schema_length=None), one_clock=True)


def times_between(begin_ns: int, first_ms: int, last_ms: int) -> dict[str, int]:
    return {"start_ns": begin_ns + first_ms * MS, "end_ns": begin_ns + last_ms * MS}


def test_a_loss_that_is_averaged_first_stays_where_it_is() -> None:
    """The two reductions after backprop run in parallel: the first one's 10 ms are hidden."""
    (answer,) = whatif(blocking_steps("backprop"), "overlap=on").answers
    assert answer.saving * 100 == pytest.approx(10, abs=1)


def reduced_steps(*reductions_ms: tuple[int, int, int], thread: str) -> Trace:
    """Return 12 steps of 100 ms on two ranks, with two reductions each.

    Args:
        reductions_ms: When some backprop, and the reduction behind it, begins and when that ends; the
            update begins behind the last one.
        thread: The thread of the reductions.
    """
    rows = []
    for step in range(12):
        begin_ns = step * 100 * MS
        over_ms = max(end_ms for _, _, end_ms in reductions_ms)
        for rank in range(2):
            of_rank: dict[str, Any] = {"rank": rank, "thread": "main"}
            rows.append(of_rank | {"kind": "step", "step": step} | times_between(begin_ns, 0, 98))
            rows.append(of_rank | {"kind": "update"} | times_between(begin_ns, over_ms, 98))
            for number, (first_ms, begin_ms, end_ms) in enumerate(reductions_ms):
                if first_ms < begin_ms:
                    work = {"kind": "backprop"} | times_between(begin_ns, first_ms, begin_ms)
                    rows.append(of_rank | work)
                sized = {"communicator": "world", "seq": 2 * step + number, "bytes": 1 << 20}
                reduction = {"kind": "reduction", "op": "allreduce", "thread": thread} | sized
                rows.append(of_rank | reduction | times_between(begin_ns, begin_ms, end_ms))
    return tl.Trace.from_table(pl.DataFrame(rows, infer_schema_length=None), one_clock=True)


@pytest.mark.parametrize(
    ("reductions_ms", "thread"),
    [
        # Of two blocking reductions, each behind its part of backprop, the first one is hidden.
        (((5, 35, 45), (45, 75, 85)), "main"),
        # Both begin after backprop, but half of the gradients were ready 30 ms earlier.
        (((5, 65, 75), (66, 66, 85)), "communication"),
    ],
)
def test_overlap_hides_the_first_of_two_reductions(
    reductions_ms: tuple[tuple[int, int, int], ...], thread: str
) -> None:
    trace = reduced_steps(*reductions_ms, thread=thread)
    (answer,) = whatif(trace, "overlap=on").answers
    assert answer.notes[0].startswith("24 reductions")
    assert answer.saving * 100 == pytest.approx(10, abs=0.5)


def name_buckets(trace: Trace, ready: tuple[float, ...]) -> Trace:
    """Return a run whose backprop has a span for each bucket, until a share of backprop is done."""
    events = trace.events.collect()
    backprop = events.filter(pl.col("kind") == "backprop")
    length = pl.col("end_ns") - pl.col("start_ns")
    spans = [
        backprop.with_columns(
            start_ns=pl.col("start_ns") + (length * begin_share).round().cast(pl.Int64),
            end_ns=pl.col("start_ns") + (length * end_share).round().cast(pl.Int64),
            bucket=pl.lit(bucket, pl.Int32),
            depth=pl.lit(2, events.schema["depth"]),
        )
        for bucket, (begin_share, end_share) in enumerate(pairwise((0.0, *ready)))
    ]
    rows = pl.concat([events, *spans])
    order = [pl.col("process"), pl.col("start_ns"), -pl.col("end_ns")]
    return prepare(trace.with_(events=rows.sort(*order, maintain_order=True).lazy()))


@pytest.mark.parametrize("has_spans", [True, False])
def test_a_bucket_is_full_when_its_span_of_backprop_ends(*, has_spans: bool) -> None:
    """Equal buckets that are full late leave less to overlap than their bytes say."""
    ready = (0.7, 0.8, 0.9, 1.0)
    blocking = replace(BLOCKING, buckets=4, bucket_sizes=(), transfer_ms=4.0, bucket_ready=ready)
    trace = run(blocking)
    (answer,) = whatif(name_buckets(trace, ready) if has_spans else trace, "overlap=on").answers
    truth = 1 - duration_ns(replace(blocking, overlap=True)) / duration_ns(blocking)
    assert (answer.saving == pytest.approx(truth, rel=0.02)) == has_spans
    assert ("its bucket's last span of it ends" in answer.notes[0]) == has_spans


@pytest.mark.parametrize("edits", [("phase:data=0",), ("phase:data/2", "phase:data=0", "rank:2=0")])
def test_work_is_taken_off_once(edits: tuple[str, ...]) -> None:
    """What one edit took off another one does not take off again."""
    trace = run(faulty(BASE, "data", extra_ms=30, every=10))
    alone = whatif(trace, edits[-1]).answers[0].saving
    (twice,) = whatif(trace, *edits, edits[-1]).answers
    assert twice.saving == pytest.approx(whatif(trace, *edits).answers[0].saving)
    assert twice.saving >= alone


def test_a_refusal_says_what_is_in_the_way() -> None:
    with pytest.raises(InvalidArgument, match="this trace has no span of backprop"):
        whatif(blocking_steps("user"), "overlap=on")


def test_equal_sizes_tell_no_bandwidth() -> None:
    """Calls of one size do not separate latency from bandwidth, so none is assumed."""
    with pytest.raises(InvalidArgument, match="at least two sizes"):
        whatif(run(Scenario(ranks=3, steps=20)), "bandwidth*2")


def test_a_background_write_costs_what_has_no_room_between_steps() -> None:
    """Between the last collective of a step and the first of the next is the room for it."""
    trace = run(BLOCKING)
    grid = trace.calls[0]
    first, last = grid.start_ns.max(axis=1)[:: BASE.buckets], grid.end_ns.min(axis=1)
    room = float((first[1:] - last[BASE.buckets - 1 :: BASE.buckets][:-1]).mean())
    small_write, large_write = (whatif(trace, f"background={mib}MiB").answers[0] for mib in (1, 64))
    assert small_write.saving == pytest.approx(0.0, abs=1e-4)
    match = re.search(r"64.0 MiB a step take ([\d.]+) ms of a link", large_write.notes[0])
    assert match
    longer = float(match[1]) * 1e6 - room
    steps = BASE.steps
    assert large_write.after_ns - large_write.before_ns == pytest.approx(
        longer * (steps - 1) / steps, rel=0.02
    )


def test_the_recorded_algorithm_is_what_is_changed() -> None:
    """Of a run that recorded a tree, a tree changes nothing, and nothing is assumed."""
    trace = sample_trace("mpi-tree")
    (tree_answer,), (doubling_answer,) = (
        whatif(trace, f"algorithm={name}").answers for name in ("tree", "recursive-doubling")
    )
    assert tree_answer.saving == pytest.approx(0.0, abs=1e-9)
    assert doubling_answer.saving > 0.05
    assert not tree_answer.notes
    assert not doubling_answer.notes
    with pytest.raises(InvalidArgument, match="one line does not fit all"):
        whatif(sample_trace("mpi-sweep"), "algorithm=ring")


UNEVEN = replace(SERVERS, noise=0.3, shard_bytes=(64 << 10, 64 << 10), apply_ms=0.1)


def test_without_barriers_nobody_waits_for_the_slowest_of_each_step() -> None:
    """What differs from step to step evens out: who works longest in all ends the run."""
    recorded = run(UNEVEN)
    own = phases.run(recorded)
    worked = own.sum_by_worker(own.sum_ns_by_window(*OWN_CATEGORIES)).max()
    alone = replace(UNEVEN, ranks=1, noise=0.0, spread=0.0, steps=10)
    computed = alone.data_ms + alone.forward_ms + alone.backprop_ms
    exchange_ns = duration_ns(alone) / alone.steps - computed * 1e6
    truth = 1 - (worked + UNEVEN.steps * exchange_ns) / job_ns(recorded)
    (answer,) = whatif(recorded, "async=on").answers
    assert truth > 0.15
    assert answer.saving == pytest.approx(truth, abs=0.02)


def test_each_gradient_applied_costs_a_slow_server_more() -> None:
    """An update that takes as long as compute is made once a worker instead of once a step."""
    slow = replace(SERVERS, ranks=4, apply_ms=20.0, noise=0.01)
    recorded = run(slow)
    (answer,) = whatif(recorded, "async=on").answers
    own = phases.run(recorded)
    worked = own.sum_by_worker(own.sum_ns_by_window(*OWN_CATEGORIES)).max() / slow.steps
    added_up = 4 * slow.shard_bytes[0] / slow.aggregate_gbytes_per_s
    assert answer.after_ns > 4 * 20e6 + added_up
    assert answer.after_ns < 4 * 20e6 + added_up + worked + 10e6


def test_a_master_that_serves_who_waits() -> None:
    """Of workers that were served in turn, who works longest sets the pace, on a real run."""
    recorded = sample_trace("easgd-original")
    own = phases.run(recorded)
    worked = own.sum_by_worker(own.sum_ns_by_window(*OWN_CATEGORIES)).max() / 40
    served = recorded.requests.filter(pl.col("process").is_in(recorded.shards["process"].implode()))
    serving = served.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() / 40
    (answer,) = whatif(recorded, "async=on").answers
    assert worked < answer.after_ns < worked + serving
    assert answer.saving > 0.5


def seen_late(noted_ms: float) -> Trace:
    """Twenty steps of 90 ms, two calls in flight each: rank 0 works 80 ms, and the other one 30.

    The first call is through at 10 ms; rank 0 notes it `noted_ms` after it begins to wait.
    """
    rows = []
    for step in range(20):
        for rank, worked_ms in enumerate((80, 30)):
            begin_ns = 90 * step * MS
            fields: dict[str, Any] = {"step": step, "depth": 1}
            waits = begin_ns + worked_ms * MS
            first_end_ns = waits + int(noted_ms * MS) if rank == 0 else begin_ns + 10 * MS
            rows += [
                span(rank, "step", begin_ns, begin_ns + 90 * MS, step=step),
                span(rank, "backprop", begin_ns, waits, **fields),
                call(rank, 2 * step, begin_ns + 5 * MS, first_end_ns, **fields),
                call(rank, 2 * step + 1, waits - MS, begin_ns + 88 * MS, **fields),
                span(rank, "wait", waits, begin_ns + 88 * MS, **fields),
            ]
    return prepare(trace_of(rows, ranks=2))


def test_a_call_that_was_through_before_is_seen_when_its_rank_looks() -> None:
    """Who works for less looks sooner; a call that it did wait for was really late for it."""
    for noted_ms, saved_ms in ((0.1, 50), (6.0, 2)):
        (answer,) = whatif(seen_late(noted_ms), "rank:0=median").answers
        assert answer.saving == pytest.approx(saved_ms / 90, abs=0.02)


def left_one_by_one() -> Trace:
    """Twenty steps of 20 ms, in each two calls that stop their ranks: rank 1 leaves each 2 ms later.

    The calls have 100 and 200 bytes, and take 2 and 3 ms until rank 0 leaves.
    """
    rows = []
    for step in range(20):
        for rank, (first_ms, second_ms) in enumerate(((12, 17), (14, 19))):
            begin_ns = 20 * step
            fields: dict[str, Any] = {"step": step, "depth": 1, "thread": 0}
            rows += [
                span(rank, "step", begin_ns * MS, (begin_ns + 20) * MS, step=step),
                span(rank, "backprop", begin_ns * MS, (begin_ns + 10) * MS, step=step, depth=1),
                *(
                    call(
                        rank,
                        seq,
                        (begin_ns + came_ms) * MS,
                        (begin_ns + left_ms) * MS,
                        bytes=nbytes,
                        **fields,
                    )
                    for seq, came_ms, left_ms, nbytes in (
                        (2 * step, 10, first_ms, 100),
                        (2 * step + 1, first_ms, second_ms, 200),
                    )
                ),
            ]
    return prepare(trace_of(rows, ranks=2))


def test_a_joined_call_is_left_once() -> None:
    """It takes 4 ms instead of 5 by the line of both sizes, and rank 1 is 2 ms late once."""
    (answer,) = whatif(left_one_by_one(), "buckets=300B").answers
    assert answer.before_ns - answer.after_ns == pytest.approx(3 * MS)


@pytest.mark.parametrize(
    "edits", [("overlap=on", "rank:2=median"), ("rank:2=median", "overlap=on")]
)
def test_edits_are_applied_in_order(edits: tuple[str, ...]) -> None:
    """What one edit takes away, the next one does not bring back."""
    before, after = faulty(BLOCKING, "forward", factor=1.6), BASE
    truth = 1 - duration_ns(after) / duration_ns(before)
    (answer,) = whatif(run(before), *edits).answers
    assert answer.saving == pytest.approx(truth, rel=CLOSE)
