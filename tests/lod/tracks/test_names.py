"""Every recorded span is found by what it is called, in every sample, as often as it occurs."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.runs.traces import call, span, trace_of
from support.samples import manifest, sample_trace
from support.tiers import mark_slow_in_turn

from tracelens.lod.tracks import names
from tracelens.lod.tracks.names import NAME_COLUMNS, Names

EVERY = [sample.name for sample in manifest()]


@pytest.mark.parametrize(
    "sample", mark_slow_in_turn(EVERY, ("ddp-healthy", "mpi-killed-rank", "ps-hot-shard"))
)
def test_every_name_of_every_sample_is_found(sample: str) -> None:
    """As it is, and by its kind; of each process as many as polars counts, each with its row."""
    trace = sample_trace(sample)
    processes = [*trace.workers["process"], *trace.shards["process"]]
    table_of_names = Names(processes, trace.events_of, None)
    spans = trace.spans.filter(pl.col("process").is_in(processes)).collect()
    spans = spans.with_columns(pl.col("name", "kind").cast(pl.String))
    assert table_of_names.name_table["count"].sum() == spans.height
    for column in ("name", "kind"):
        for name in spans[column].drop_nulls().unique():
            found_counts = (
                table_of_names.find_names(name).group_by("process").agg(pl.col("count").sum())
            )
            exact = spans.filter(pl.col(column) == name).group_by("process").len()
            joined = exact.join(found_counts, on="process", how="left")
            assert (joined["count"] >= joined["len"]).all(), name
            process = int(exact["process"][0])
            hits = names.find_hits(trace.events_of(process), name)
            assert hits.height == int(found_counts.filter(process=process)["count"][0])


def run_of(*rows: dict[str, Any]) -> Names:
    trace = trace_of(list(rows))
    return Names(trace.processes["process"].to_list(), trace.events_of, None)


def test_buckets_and_kinds_are_found() -> None:
    """All words that are asked for must occur, in any case and order."""
    table_of_names = run_of(
        span(0, "forward", 0, 10, "Layer 1"),
        span(0, "forward", 10, 30, "Layer 1"),
        call(0, 0, 5, 25),
        call(0, 1, 6, 25),
    )
    layers = table_of_names.find_names(" layer FORWARD ")
    assert layers["count"].to_list() == [2]
    assert layers.select("total_ns", "longest_ns", "longest_at").row(0) == (30, 20, 10)
    assert table_of_names.find_names("allreduce")["count"].sum() == 2
    assert table_of_names.find_names("backprop").is_empty()
    assert table_of_names.find_names("  ").is_empty()


def test_a_search_is_taken_literally() -> None:
    """An expression that would take for ever matches only its own letters."""
    expression = "(a+)+$"
    run_names = run_of(
        span(0, "user", 0, 10, "a" * 200), span(0, "user", 10, 20, f"layer{expression}")
    )
    assert run_names.find_names(expression)["label"].to_list() == [f"layer{expression}"]


def test_a_table_that_is_kept_is_not_counted_again(tmp_path: Path) -> None:
    """Whoever opens the run next reads it; one that is damaged is made anew."""
    trace = trace_of([span(0, "forward", 0, 10)])
    counted_table = Names([0], trace.events_of, tmp_path).name_table

    def unread(_process: int) -> pl.DataFrame:
        raise AssertionError

    assert Names([0], unread, tmp_path).name_table.equals(counted_table)
    (tmp_path / names.FILE).write_bytes(b"ARROW")
    assert Names([0], trace.events_of, tmp_path).name_table.equals(counted_table)


def test_a_run_without_events_has_no_names() -> None:
    trace = trace_of([span(0, "forward", 0, 10)])
    found = Names([0], lambda process: trace.events_of(process).clear(), None)
    assert found.name_table.schema == pl.Schema(NAME_COLUMNS)
    assert found.find_names("forward").is_empty()
