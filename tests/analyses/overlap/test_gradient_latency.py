"""Gradients are followed from ready to use, stage by stage."""

from dataclasses import replace
from typing import Any, cast

from support.runs.analysed import report
from support.runs.traces import call, span, trace_of

from tracelens.analyses.gradient_latency import STAGES, GradientLatency
from tracelens.load import prepare
from tracelens.simulator.synthetic import Fault, Scenario
from tracelens.verdicts.report import analyze

QUIET = Scenario(ranks=4, steps=40, noise=0.0, spread=0.0, exit_skew_us=0.0)
MS = 1_000_000


def follow(scenario: Scenario) -> GradientLatency:
    """Return the chains of a simulated run."""
    return cast("GradientLatency", report(scenario).results["chains"])


def follow_spans(spans: list[dict[str, Any]], **more: Any) -> GradientLatency:
    """Return the chains of a run whose spans are written by hand."""
    return cast("GradientLatency", analyze(prepare(trace_of(spans, **more))).results["chains"])


def rows(scenario: Scenario) -> list[dict[str, Any]]:
    """Return them as rows, by number."""
    return follow(scenario).chains.to_dicts()


def test_the_stages_are_the_planted_ones() -> None:
    """Two buckets of 1 ms, the second ready with the end of 10 ms of backprop, then 1 ms of update."""
    first_bucket, second_bucket = rows(QUIET)
    assert [first_bucket[name] for name in STAGES] == [0, 1 * MS, 5 * MS, 1 * MS, 1 * MS]
    assert [second_bucket[name] for name in STAGES] == [0, 1 * MS, 0, 1 * MS, 1 * MS]
    assert (first_bucket["whole_ns"], first_bucket["chains"]) == (8 * MS, 4 * 40)


def test_a_late_rank_is_waited_for() -> None:
    """The others' gradients are ready long before they are reduced."""
    late = replace(QUIET, faults=(Fault("backprop", (2,), extra_ms=4),))
    assert [row["waiting_ns"] for row in rows(late)] == [2 * MS, 4 * MS]
    assert [row["reducing_ns"] for row in rows(late)] == [1 * MS, 1 * MS]


def test_updates_belong_to_their_bucket() -> None:
    """Where updates carry a bucket, the later ones wait longer and are used sooner."""
    layered = replace(QUIET, layers=2, update_gap_ms=3.0, overlap=False)
    first_bucket, second_bucket = rows(layered)
    assert first_bucket["updating_ns"] == second_bucket["updating_ns"] == MS // 2
    assert second_bucket["until_update_ns"] == 3 * MS + MS // 2
    assert first_bucket["until_use_ns"] - second_bucket["until_use_ns"] == 3 * MS + MS // 2


def test_pushes_are_followed_through_their_shard() -> None:
    """Pushed, aggregated, applied, and used by the next forward pass."""
    (first_shard, second_shard) = rows(replace(QUIET, shards=2, shard_bytes=(1 << 20, 1 << 20)))
    assert first_shard["of"] == "shard"
    assert first_shard["updating_ns"] == 200_000
    assert first_shard["waiting_ns"] > 500_000
    assert first_shard["whole_ns"] == second_shard["whole_ns"]


def test_a_run_without_updates_has_no_chains() -> None:
    """Nothing is invented: stages that were not recorded are unknown."""
    lone = [span(0, "step", 0, MS, step=0), call(0, 0, 0, MS, step=0, bucket=0)]
    result = follow_spans(lone)
    (row,) = result.chains.to_dicts()
    assert (row["reducing_ns"], row["updating_ns"], row["whole_ns"]) == (MS, None, None)


WORKER, SHARD = 0, 2  # processes of a run of two workers and one shard


def request_rows(worker: int, step: int, start_ns: int, pull_end: int, apply: Any) -> list[Any]:
    """Return a worker's push of 10 ms, its aggregation after 2 ms, an apply, and a pull; at in ms."""
    number = (worker << 40) + 2 * step + 1
    fields: dict[str, Any] = {"thread": 1, "shard": 0, "step": step, "key": 0}
    at_shard: dict[str, Any] = {"role": "ps", "process": SHARD, "shard": 0, "step": step, "key": 0}
    return [
        span(
            worker, "ps", start_ns * MS, (start_ns + 10) * MS, op="push", request=number, **fields
        ),
        span(
            0,
            "ps",
            (start_ns + 2) * MS,
            (start_ns + 3) * MS,
            op="aggregate",
            request=number,
            **at_shard,
        ),
        span(0, "ps", op="apply", **(at_shard | apply)),
        span(
            worker,
            "ps",
            (start_ns + 10) * MS,
            pull_end * MS,
            op="pull",
            request=number + 1,
            **fields,
        ),
    ]


def steps_of(worker: int, begins: list[int]) -> list[Any]:
    """Return steps, each with a forward pass of 1 ms at its begin, ms."""
    return [
        row
        for step, begin_ms in enumerate(begins)
        for row in (
            span(worker, "step", begin_ms * MS, (begin_ms + 50) * MS, step=step),
            span(worker, "forward", begin_ms * MS, (begin_ms + 1) * MS, step=step, depth=1),
        )
    ]


def test_updates_of_asynchronous_servers_are_those_of_the_request() -> None:
    """Another worker is at the same step much later: its update is not this push's."""
    early = {"start_ns": 14 * MS, "end_ns": 16 * MS, "request": 1}
    late = {"start_ns": 1014 * MS, "end_ns": 1016 * MS, "request": (1 << 40) + 1}
    spans = [
        *steps_of(0, [0, 50]),
        *steps_of(1, [1000, 1050]),
        *request_rows(0, 0, 10, 30, early),
        *request_rows(1, 0, 1010, 1030, late),
    ]
    (row,) = follow_spans(spans, ranks=2, shards=1).chains.to_dicts()
    assert [row[name] for name in STAGES] == [2 * MS, MS, MS, 2 * MS, 34 * MS]
    assert (row["whole_ns"], row["whole_p90_ns"]) == (40 * MS, 40 * MS)


def test_weights_that_come_after_the_forward_pass_began_are_used_when_they_are_there() -> None:
    """As pipelined servers send them: a layer waits for its own weights only."""
    applied = {"start_ns": 40 * MS, "end_ns": 55 * MS}
    spans = [*steps_of(0, [0, 50]), *request_rows(0, 0, 10, 60, applied)]
    (row,) = follow_spans(spans, shards=1, process=[WORKER, SHARD]).chains.to_dicts()
    assert (row["updating_ns"], row["until_use_ns"]) == (15 * MS, 5 * MS)


def test_an_update_before_its_gradient_is_not_that_of_it() -> None:
    """What is not known is null, and the whole with it."""
    applied = {"start_ns": 5 * MS, "end_ns": 6 * MS}
    spans = [*steps_of(0, [0, 50]), *request_rows(0, 0, 10, 30, applied)]
    (row,) = follow_spans(spans, shards=1, process=[WORKER, SHARD]).chains.to_dicts()
    assert (row["until_update_ns"], row["whole_ns"]) == (None, None)


def test_an_update_round_the_whole_step_takes_gradients_up_when_they_are_reduced() -> None:
    """As where the optimizer calls forward and backprop itself; and ends may be noticed late."""
    around = [
        *steps_of(0, [0, 50]),
        span(0, "update", 2 * MS, 40 * MS, step=0),
        call(0, 0, 10 * MS, 20 * MS, step=0, bucket=0),
        call(0, 1, 60 * MS, 95 * MS, step=1, bucket=0),
        span(0, "update", 80 * MS, 90 * MS, step=1),
    ]
    (row,) = follow_spans(around).chains.to_dicts()
    assert (row["until_update_ns"], row["chains"]) == (0, 2)
    assert (row["reducing_ns"], row["updating_ns"]) == (15 * MS, 15 * MS)
