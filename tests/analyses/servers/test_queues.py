"""Time in queues at servers is for a shard at work, for another worker's push, or for nothing known."""

from dataclasses import replace
from typing import Any, cast

import pytest
from support.runs.analysed import report
from support.runs.traces import span, trace_of
from support.tiers import mark_slow

from tracelens.accounting import phases
from tracelens.analyses.servers.queues import Queues
from tracelens.analyses.servers.shards import Shards
from tracelens.load import prepare
from tracelens.model.result import Report
from tracelens.simulator.synthetic import Fault, Scenario
from tracelens.verdicts.report import analyze

MS = 10**6
MIB = 1 << 20
SERVERS = Scenario(ranks=4, steps=40, shards=2, noise=0.02)
HOT = replace(SERVERS, shard_bytes=(4 * MIB, 40 * MIB))


def queues(found: Report) -> Queues:
    """Measure the queues of a run."""
    return cast("Shards", found.results["shards"]).queues


def step_with_requests(worker: int, push: int, pull: tuple[int, int]) -> list[dict[str, Any]]:
    """Return a worker's step of 100 ms with a push and a pull, and what shard 0 did for it; in ms."""
    number = (worker << 40) + 1
    fields: dict[str, Any] = {"thread": 1, "shard": 0, "step": 0}
    served: dict[str, Any] = {"process": 2, "role": "ps", "shard": 0, "step": 0, "thread": 0}
    push_end = push + 5
    return [
        span(worker, "step", 0, 100 * MS, step=0),
        span(worker, "forward", 0, push * MS, step=0, depth=1),
        span(worker, "wait", push * MS, 100 * MS, step=0, depth=1),
        span(worker, "ps", push * MS, push_end * MS, op="push", request=number, **fields),
        span(worker, "ps", pull[0] * MS, pull[1] * MS, op="pull", request=number + 1, **fields),
        span(
            0,
            "ps",
            (push + 1) * MS,
            (push + 2) * MS,
            op="receive",
            request=number,
            bytes=8,
            **served,
        ),
        span(0, "ps", (push + 2) * MS, (push + 4) * MS, op="aggregate", request=number, **served),
        span(
            0, "ps", pull[0] * MS, pull[0] * MS, op="receive", request=number + 1, bytes=0, **served
        ),
        span(0, "ps", (pull[1] - 1) * MS, pull[1] * MS, op="reply", request=number + 1, **served),
    ]


def test_a_pull_waits_for_the_last_push_and_then_for_its_shard() -> None:
    """Worker 0 pulls at 15 ms, worker 1 pushes at 60; the shard applies that until 80, and idles."""
    applied = span(
        0, "ps", 64 * MS, 80 * MS, op="apply", process=2, role="ps", shard=0, step=0, thread=0
    )
    rows = [*step_with_requests(0, 10, (15, 90)), *step_with_requests(1, 60, (65, 91)), applied]
    measured = queues(analyze(prepare(trace_of(rows, ranks=2, shards=1))))
    assert measured.missing_push_ns == 45 * MS  # from 15 to 60
    # Worker 0 from 60 to 89: 61 to 80. Worker 1 from 65 to 90: to 80, and the other's reply.
    assert measured.at_work_ns_by_shard == {0: pytest.approx((19 + 15 + 1) * MS)}
    assert measured.ranks == (0, 1)
    assert measured.alone.select("rank", "alone_ns").rows() == [(1, 50 * MS)]


def at_a_barrier(worker: int, push: int, applied: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return a worker's step of 100 ms that ends at a barrier: its push is over when it is received."""
    number = (worker << 40) + 1
    served: dict[str, Any] = {"process": 2, "role": "ps", "shard": 0, "step": 0, "thread": 0}
    served |= {"request": number}
    return [
        span(worker, "step", 0, 100 * MS, step=0),
        span(worker, "forward", 0, push * MS, step=0, depth=1),
        span(worker, "wait", push * MS, 100 * MS, step=0, depth=1),
        span(
            worker, "ps", push * MS, (push + 5) * MS, op="push", request=number, thread=1, shard=0,
            step=0,
        ),
        span(0, "ps", (push + 1) * MS, (push + 2) * MS, op="receive", bytes=8, **served),
        span(0, "ps", (push + 2) * MS, (push + 4) * MS, op="aggregate", **served),
        *([span(0, "ps", applied[0] * MS, applied[1] * MS, op="apply", **served)] if applied else []),
    ]  # fmt: skip


def test_a_barrier_is_for_the_last_push_and_then_for_the_update() -> None:
    """Nothing is asked for meanwhile: workers 0 and 1 push at 10 and 60 ms, the update is made at 90."""
    rows = [*at_a_barrier(0, 10, ()), *at_a_barrier(1, 60, (64, 90))]
    trace = prepare(trace_of(rows, ranks=2, shards=1))
    report = analyze(trace)
    measured = queues(report)
    assert measured.missing_push_ns == 45 * MS  # from 15 to 60
    # Worker 0 from 61, before that the push is on its way to an idle shard; worker 1 from 65.
    assert measured.at_work_ns_by_shard == {0: pytest.approx((29 + 25) * MS)}
    assert sum(measured.held_ns_by_shard.values()) == 0
    spent = phases.run(trace)
    assert spent.sum_ns_by_window("wait").sum() == 0
    assert spent.sum_ns_by_window("ps_queue").sum() == (45 + 29 + 25) * MS


def test_a_shard_holds_what_it_has_and_does_not_serve() -> None:
    """The update begins 20 ms after the last push arrived, and no span covers the delay."""
    rows = [*at_a_barrier(0, 10, ()), *at_a_barrier(1, 60, (84, 90))]
    found = queues(analyze(prepare(trace_of(rows, ranks=2, shards=1))))
    assert found.held_ns_by_shard == {0: pytest.approx((20 + 19) * MS)}


def test_nobody_waits_for_updates_of_single_pushes() -> None:
    """Each push makes one, so that a worker that is blocked afterwards waits for something else."""
    rows = [*at_a_barrier(0, 10, (14, 40)), *at_a_barrier(1, 60, (64, 90))]
    trace = prepare(trace_of(rows, ranks=2, shards=1))
    assert phases.run(trace).sum_ns_by_window("ps_queue").sum() == 0


def test_a_hot_shard_claims_what_is_queued_while_it_works() -> None:
    """All of it, though even placement would not save as much; nothing is left to be explained."""
    run_report = report(HOT)
    assert run_report.ledger
    claimed = sum(
        loss.share
        for loss in run_report.ledger.losses
        if loss.finding is not None and loss.category == "ps_queue"
    )
    (fault,) = (one for one in run_report.findings if one.kind == "ps_hot_shard")
    assert claimed > (fault.saving or 0.0)
    assert run_report.ledger.unexplained < 0.05


def test_queues_that_no_finding_explains_stay_unexplained() -> None:
    """Of so few steps that nothing is judged, though the shard was at work."""
    short_run = report(replace(SERVERS, steps=10, aggregate_gbytes_per_s=0.2, apply_ms=0.4))
    assert [one.kind for one in short_run.findings if one.shards] == []
    assert short_run.verdict.state == "inconclusive"
    assert "waiting in queues of servers" in short_run.verdict.why


@pytest.mark.parametrize("noise", mark_slow([0.05, 0.1], quick=[0.1]))
def test_workers_that_wait_for_each_other_in_turns_are_jitter(noise: float) -> None:
    """As at collectives: a noisy run with servers has no fault."""
    run_report = report(replace(SERVERS, ranks=8, steps=60, noise=noise, bucket_bytes=MIB // 8))
    assert run_report.ledger
    assert run_report.ledger.sum_share("jitter") > 0.02
    assert run_report.verdict.state in {"healthy", "bottleneck"}


def test_what_others_wait_for_a_late_worker_is_its_own() -> None:
    """Claimed by the straggler, and no shard's."""
    late = Fault("backprop", (2,), extra_ms=6.0)
    run_report = report(replace(SERVERS, ranks=4, faults=(late,)))
    assert run_report.ledger
    assert run_report.verdict.kind == "straggler"
    assert run_report.ledger.unexplained < 0.05
    assert run_report.ledger.awaited_rank == 2
