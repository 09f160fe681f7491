"""Gradients are followed from ready to use, stage by stage; free time between updates is added up."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import polars as pl
import pytest
from support.runs.analysed import report
from support.runs.traces import call, span, trace_of

from tracelens.analyses.gradient_latency import STAGES, steps_to_write
from tracelens.load import prepare
from tracelens.simulator.synthetic import Fault, Scenario
from tracelens.verdicts.report import analyze

if TYPE_CHECKING:
    from tracelens.analyses.gradient_latency import GradientLatency

QUIET = Scenario(ranks=4, steps=40, noise=0.0, spread=0.0, exit_skew_us=0.0)
MS = 1_000_000


def found(scenario: Scenario) -> GradientLatency:
    """Return the chains of a simulated run."""
    return cast("GradientLatency", report(scenario).results["chains"])


def written(spans: list[dict[str, Any]], **more: Any) -> GradientLatency:
    """Return the chains of a run whose spans are written by hand."""
    return cast("GradientLatency", analyze(prepare(trace_of(spans, **more))).results["chains"])


def rows(scenario: Scenario) -> list[dict[str, Any]]:
    """Return them as rows, by number."""
    return found(scenario).chains.to_dicts()


def test_the_stages_are_the_planted_ones() -> None:
    """Two buckets of 1 ms, the second ready with the end of 10 ms of backprop, then 1 ms of update."""
    first, second = rows(QUIET)
    assert [first[name] for name in STAGES] == [0, 1 * MS, 5 * MS, 1 * MS, 1 * MS]
    assert [second[name] for name in STAGES] == [0, 1 * MS, 0, 1 * MS, 1 * MS]
    assert (first["whole_ns"], first["chains"]) == (8 * MS, 4 * 40)


def test_a_late_rank_is_waited_for() -> None:
    """The others' gradients are ready long before they are reduced."""
    late = replace(QUIET, faults=(Fault("backprop", (2,), extra_ms=4),))
    assert [row["waiting_ns"] for row in rows(late)] == [2 * MS, 4 * MS]
    assert [row["reducing_ns"] for row in rows(late)] == [1 * MS, 1 * MS]


def test_updates_belong_to_their_bucket() -> None:
    """Where updates carry a bucket, the later ones wait longer and are used sooner."""
    layered = replace(QUIET, layers=2, update_gap_ms=3.0, overlap=False)
    first, second = rows(layered)
    assert first["updating_ns"] == second["updating_ns"] == MS // 2
    assert second["until_update_ns"] == 3 * MS + MS // 2
    assert first["until_use_ns"] - second["until_use_ns"] == 3 * MS + MS // 2


def test_pushes_are_followed_through_their_shard() -> None:
    """Pushed, aggregated, applied, and used by the next forward pass."""
    (one, other) = rows(replace(QUIET, shards=2, shard_bytes=(1 << 20, 1 << 20)))
    assert one["of"] == "shard"
    assert one["updating_ns"] == 200_000
    assert one["waiting_ns"] > 500_000
    assert one["whole_ns"] == other["whole_ns"]


def test_free_time_between_updates_is_usable() -> None:
    """Exposed transfer of 1 ms a step, at 1 GB/s a megabyte; what is hidden or too short is not free."""
    for row in found(QUIET).background.to_dicts():
        assert row["gap_ns"] == 17 * MS
        assert row["usable_ns"] == row["usable_p10_ns"] == 1 * MS
        assert row["share"] == pytest.approx(1 / 18, rel=0.03)
    hidden = replace(QUIET, transfer_ms=0.1)
    assert found(hidden).background["usable_ns"].to_list() == [0] * 4


def test_who_waits_has_more_of_it() -> None:
    """The late rank has least, and decides in how many steps a checkpoint is written."""
    late = replace(QUIET, faults=(Fault("backprop", (2,), extra_ms=4),))
    table = found(late).background
    assert table.sort("usable_ns")["rank"][0] == 2
    assert table.filter(pl.col("rank") == 0)["usable_ns"][0] == 5 * MS
    assert steps_to_write(table, 100_000_000) == 100
    assert steps_to_write(table, 100_000_000, bytes_per_ns=2.0) == 50
    assert steps_to_write(table.head(0), 1) == float("inf")


def test_time_within_the_update_is_not_usable() -> None:
    """Between a step's updates the weights are neither old nor new."""
    spans = []
    for step in range(3):
        at = step * 100 * MS
        spans += [
            span(0, "step", at, at + 100 * MS, step=step),
            span(0, "forward", at, at + 10 * MS, depth=1, step=step),
            call(0, step, at + 10 * MS, at + 20 * MS, thread=0, depth=1, step=step),
            span(0, "update", at + 20 * MS, at + 30 * MS, depth=1, step=step),
            span(0, "wait", at + 30 * MS, at + 60 * MS, depth=1, step=step),
            span(0, "update", at + 60 * MS, at + 100 * MS, depth=1, step=step),
        ]
    (row,) = written(spans).background.to_dicts()
    assert (row["gap_ns"], row["usable_ns"]) == (20 * MS, 10 * MS)


def test_a_run_without_updates_has_no_chains() -> None:
    """Nothing is invented: stages that were not recorded are unknown."""
    lone = [span(0, "step", 0, MS, step=0), call(0, 0, 0, MS, step=0, bucket=0)]
    result = written(lone)
    (row,) = result.chains.to_dicts()
    assert (row["reducing_ns"], row["updating_ns"], row["whole_ns"]) == (MS, None, None)
    assert result.background.is_empty()


WORKER, SHARD = 0, 2  # processes of a run of two workers and one shard


def exchanged(worker: int, step: int, at: int, pull_end: int, apply: Any) -> list[Any]:
    """Return a worker's push of 10 ms, its aggregation after 2 ms, an apply, and a pull; at in ms."""
    number = (worker << 40) + 2 * step + 1
    asked: dict[str, Any] = {"thread": 1, "shard": 0, "step": step, "key": 0}
    at_shard: dict[str, Any] = {"role": "ps", "process": SHARD, "shard": 0, "step": step, "key": 0}
    return [
        span(worker, "ps", at * MS, (at + 10) * MS, op="push", request=number, **asked),
        span(0, "ps", (at + 2) * MS, (at + 3) * MS, op="aggregate", request=number, **at_shard),
        span(0, "ps", op="apply", **(at_shard | apply)),
        span(worker, "ps", (at + 10) * MS, pull_end * MS, op="pull", request=number + 1, **asked),
    ]


def steps_of(worker: int, begins: list[int]) -> list[Any]:
    """Return steps, each with a forward pass of 1 ms at its begin, ms."""
    return [
        row
        for step, at in enumerate(begins)
        for row in (
            span(worker, "step", at * MS, (at + 50) * MS, step=step),
            span(worker, "forward", at * MS, (at + 1) * MS, step=step, depth=1),
        )
    ]


def test_updates_of_asynchronous_servers_are_those_of_the_request() -> None:
    """Another worker is at the same step much later: its update is not this push's."""
    early = {"start_ns": 14 * MS, "end_ns": 16 * MS, "request": 1}
    late = {"start_ns": 1014 * MS, "end_ns": 1016 * MS, "request": (1 << 40) + 1}
    spans = [
        *steps_of(0, [0, 50]),
        *steps_of(1, [1000, 1050]),
        *exchanged(0, 0, 10, 30, early),
        *exchanged(1, 0, 1010, 1030, late),
    ]
    (row,) = written(spans, ranks=2, shards=1).chains.to_dicts()
    assert [row[name] for name in STAGES] == [2 * MS, MS, MS, 2 * MS, 34 * MS]
    assert (row["whole_ns"], row["whole_p90_ns"]) == (40 * MS, 40 * MS)


def test_weights_that_come_after_the_forward_pass_began_are_used_when_they_are_there() -> None:
    """As pipelined servers send them: a layer waits for its own weights only."""
    applied = {"start_ns": 40 * MS, "end_ns": 55 * MS}
    spans = [*steps_of(0, [0, 50]), *exchanged(0, 0, 10, 60, applied)]
    (row,) = written(spans, shards=1, process=[WORKER, SHARD]).chains.to_dicts()
    assert (row["updating_ns"], row["until_use_ns"]) == (15 * MS, 5 * MS)


def test_an_update_before_its_gradient_is_not_that_of_it() -> None:
    """What is not known is null, and the whole with it."""
    applied = {"start_ns": 5 * MS, "end_ns": 6 * MS}
    spans = [*steps_of(0, [0, 50]), *exchanged(0, 0, 10, 30, applied)]
    (row,) = written(spans, shards=1, process=[WORKER, SHARD]).chains.to_dicts()
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
    (row,) = written(around).chains.to_dicts()
    assert (row["until_update_ns"], row["chains"]) == (0, 2)
    assert (row["reducing_ns"], row["updating_ns"]) == (15 * MS, 15 * MS)
