"""Gradients are followed from ready to use, stage by stage; free time between updates is added up."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import polars as pl
import pytest
from support.runs.analysed import report
from support.runs.traces import call, span, trace_of

from tracelens.analyses import analyze
from tracelens.analyses.overlap.gradient_latency import STAGES, steps_to_write
from tracelens.load import prepare
from tracelens.simulator.synthetic import Fault, Scenario

if TYPE_CHECKING:
    from tracelens.analyses.overlap.gradient_latency import GradientLatency

QUIET = Scenario(ranks=4, steps=40, noise=0.0, spread=0.0, exit_skew_us=0.0)
MS = 1_000_000


def found(scenario: Scenario) -> GradientLatency:
    """Return the chains of a simulated run."""
    return cast("GradientLatency", report(scenario).results["chains"])


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
    result = analyze(prepare(trace_of(spans))).results["chains"]
    (row,) = cast("GradientLatency", result).background.to_dicts()
    assert (row["gap_ns"], row["usable_ns"]) == (20 * MS, 10 * MS)


def test_a_run_without_updates_has_no_chains() -> None:
    """Nothing is invented: stages that were not recorded are unknown."""
    lone = [span(0, "step", 0, MS, step=0), call(0, 0, 0, MS, step=0, bucket=0)]
    result = cast("GradientLatency", analyze(prepare(trace_of(lone))).results["chains"])
    (row,) = result.chains.to_dicts()
    assert (row["reducing_ns"], row["updating_ns"], row["whole_ns"]) == (MS, None, None)
    assert result.background.is_empty()
