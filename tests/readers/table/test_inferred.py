"""Clocks, steps, matching and threads are concluded from what a table says, or said to be unknown."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from support.runs.analysed import RUNS
from support.runs.analysed import trace as simulated
from support.runs.tables import table_of

from tracelens import Trace
from tracelens.simulator.synthetic import Scenario, generate, random_clocks
from tracelens.verdicts.report import analyze

SLOW = RUNS["slow rank"][0]
HEALTHY = RUNS["healthy"][0]


def plain(scenario: Scenario) -> pl.DataFrame:
    return table_of(simulated(scenario), with_extras=False)


def faults(trace: Trace) -> list[tuple[Any, ...]]:
    found = [f for f in analyze(trace).findings if f.category == "fault"]
    return [(f.kind, f.ranks, f.phase, f.steps) for f in found]


def sentences(trace: Trace) -> str:
    return "\n".join(note.sentence for note in trace.notes)


def test_unknown_clocks_are_aligned_by_exits() -> None:
    """Without hosts no clock is assumed common: offsets of 5 ms are found, not believed."""
    scenario = Scenario(ranks=4, ranks_per_host=1, steps=60, clocks=random_clocks(4))
    table = table_of(generate(scenario), with_extras=False).drop("host")
    trace = Trace.from_table(table)
    assert trace.alignment.method == "collective_exits"
    assert len(trace.alignment.hosts) == 4
    offsets = [host.offset_ns for host in trace.alignment.hosts]
    true = [clock.offset_ns - scenario.clocks[0].offset_ns for clock in scenario.clocks]
    assert offsets == pytest.approx(true, abs=50_000)
    assert faults(trace) == []


def test_one_clock_is_believed_if_told() -> None:
    table = plain(HEALTHY).drop("host")
    trace = Trace.from_table(table, one_clock=True)
    assert trace.alignment.method == "same_clock"
    assert trace.events.collect()["start_ns"].min() == table["start_ns"].min()


def test_a_column_tells_clocks() -> None:
    """Ranks of one clock need no alignment, even on different hosts."""
    table = plain(HEALTHY).with_columns(clock=pl.lit("gps"), host=pl.col("rank").cast(pl.String))
    assert Trace.from_table(table).alignment.method == "same_clock"


def test_dates_tie_clocks_to_a_millisecond() -> None:
    table = plain(HEALTHY).drop("host", "seq").filter(pl.col("kind") != "reduction")
    moved = table.with_columns(pl.col("start_ns", "end_ns") + 1_748_779_200_000_000_000)
    trace = Trace.from_table(moved)
    assert trace.alignment.method == "wall"
    assert trace.alignment.uncertainty_ns == 1_000_000
    assert "cannot be aligned" in sentences(Trace.from_table(table))


@pytest.mark.slow
def test_steps_by_number_rows_or_updates() -> None:
    """Whatever tells the steps, the verdict is the same."""
    numbered = Trace.from_table(plain(SLOW))
    table = plain(SLOW).drop("step")
    rows = Trace.from_table(table)
    updates = Trace.from_table(table.filter(pl.col("kind") != "step"))
    assert faults(numbered) == faults(rows) == faults(updates)
    assert faults(numbered) == [("straggler", (2,), "forward", (20, 49))]
    assert "the updates that end them" in sentences(updates)


def test_layered_updates_end_one_step() -> None:
    """Updates of single layers are one step's end, also with gaps between them."""
    scenario = Scenario(ranks=2, steps=12, layers=3, update_gap_ms=0.5)
    table = plain(scenario).filter(pl.col("kind") != "step").drop("step")
    assert Trace.from_table(table).steps["step"].max() == 11


@pytest.mark.parametrize("missing", ["updates", "one rank's", "uneven"])
def test_steps_by_collectives(missing: str) -> None:
    """Where updates do not say where steps begin, or not the same for all, the collectives do."""
    table = plain(Scenario(ranks=2, steps=12)).filter(pl.col("kind") != "step").drop("step")
    update, of_rank_1 = pl.col("kind") == "update", pl.col("rank") == 1
    is_missing = {"updates": update, "one rank's": update & of_rank_1}.get(missing)
    if is_missing is None:
        last = table.filter(update & of_rank_1)["start_ns"].max()
        is_missing = update & of_rank_1 & (pl.col("start_ns") == last)
    trace = Trace.from_table(table.filter(~is_missing))
    assert trace.steps["step"].unique().to_list() == list(range(11))
    assert "the collectives that they repeat (allreduce" in sentences(trace)
    alone = Trace.from_table(table.filter(~is_missing & (pl.col("kind") != "reduction") & ~update))
    assert alone.steps["step"].unique().to_list() == [0]
    assert "the whole run counts as one" in sentences(alone)


def test_order_matches_only_equal_counts() -> None:
    """Without numbers calls match by order; they are marked, and the verdict is the same."""
    table = plain(SLOW).drop("seq")
    trace = Trace.from_table(table)
    assert faults(trace) == faults(Trace.from_table(plain(SLOW)))
    calls = trace.events.collect().filter(pl.col("op") == "allreduce")
    assert calls["status"].unique().to_list() == ["estimated"]
    assert "matched by their order" in sentences(trace)
    first = table.with_row_index().filter(pl.col("op") == "allreduce")["index"][0]
    trace_without = Trace.from_table(
        table.with_row_index().filter(pl.col("index") != first).drop("index")
    )
    assert trace_without.arrivals.is_empty()
    assert "do not make equally many (1 to 2 of 'allreduce' in step 0)" in sentences(trace_without)


def test_numbers_that_begin_anew_in_each_step() -> None:
    """Step and number together are the number then."""
    table = plain(SLOW).with_columns(pl.col("seq") % 2)
    trace = Trace.from_table(table)
    assert (
        trace.arrivals.height == trace.events.collect().filter(pl.col("op") == "allreduce").height
    )
    assert trace.arrivals["arrived"].unique().to_list() == [4]
    assert faults(trace) == faults(Trace.from_table(plain(SLOW)))


def test_numbers_beyond_32_bits_are_read() -> None:
    """Numbers beyond 32 bits are numbers all the same."""
    table = plain(HEALTHY).with_columns(pl.col("seq").cast(pl.Int64) + 2**40)
    assert (
        Trace.from_table(table).arrivals.height == Trace.from_table(plain(HEALTHY)).arrivals.height
    )


def test_numbers_used_twice_match_nothing() -> None:
    trace = Trace.from_table(plain(HEALTHY).with_columns(seq=pl.lit(0)))
    assert trace.arrivals.is_empty()
    assert "uses a number twice" in sentences(trace)


def test_buckets_beside_backprop_without_threads() -> None:
    """They are taken to run in parallel, so the verdict and its saving are unchanged."""
    trace, told = Trace.from_table(plain(SLOW).drop("thread")), Trace.from_table(plain(SLOW))
    assert "overlaps other work of its rank" in sentences(trace)
    first, second = analyze(trace).findings[0], analyze(told).findings[0]
    assert (first.kind, first.ranks, first.saving) == (second.kind, second.ranks, second.saving)


def test_blocking_calls_without_threads() -> None:
    """Calls between other work stay on their thread."""
    table = plain(RUNS["blocking"][0]).drop("thread")
    trace = Trace.from_table(table)
    assert not trace.threads["in_flight"].any()
    assert "overlaps" not in sentences(trace)


def test_calls_without_other_work_are_no_overlap() -> None:
    """Nothing but calls and how many samples each step had: the calls are the thread's own."""
    calls = plain(HEALTHY).filter(pl.col("kind") == "reduction").drop("thread")
    counters = calls.unique(["rank", "step"], keep="last").with_columns(
        type=pl.lit("counter"),
        kind=pl.lit("step"),
        name=pl.lit("samples"),
        value=pl.lit(32.0),
        start_ns="end_ns",
        op=pl.lit(None, pl.String),
        seq=pl.lit(None, pl.Int64),
    )
    calls = calls.with_columns(type=pl.lit("span"), value=pl.lit(None, pl.Float64))
    trace = Trace.from_table(pl.concat([calls, counters], how="vertical_relaxed"))
    assert "overlaps" not in sentences(trace)
    assert len(trace.threads) == 4
    assert trace.steps["step"].n_unique() == 60


@pytest.mark.slow
def test_threads_by_name_or_huge_number() -> None:
    """Thread names and system-wide thread numbers serve as well as small ones."""
    table = plain(SLOW)
    expected_faults = faults(Trace.from_table(table))
    with_names = table.with_columns(thread=pl.format("thread-{}", "thread"))
    large = table.with_columns(thread=pl.col("thread").cast(pl.Int64) + 139_872_334)
    assert (
        faults(Trace.from_table(with_names)) == faults(Trace.from_table(large)) == expected_faults
    )
    assert "thread-0" in Trace.from_table(with_names).threads["name"].to_list()


def test_local_ranks_are_refused() -> None:
    """A rank on two hosts is no global rank, and mixing two processes would tell nonsense."""
    table = {"rank": [0, 0], "host": ["a", "b"], "start_ns": [1, 2], "end_ns": [3, 4]}
    with pytest.raises(Exception, match=r"rank 0 has rows of the hosts 'a' and 'b'.*global rank"):
        Trace.from_table(table)


def test_a_row_without_an_end_is_open() -> None:
    """A row without an end is where its rank was when the recording broke off."""
    table = plain(Scenario(ranks=2, steps=12))
    last = table.filter((pl.col("rank") == 1) & (pl.col("kind") == "forward"))["start_ns"].max()
    here = (pl.col("rank") == 1) & (pl.col("start_ns") >= last)
    cut = table.filter(~here | (pl.col("start_ns") == last)).with_columns(
        end_ns=pl.when(~here).then("end_ns")
    )
    report = analyze(Trace.from_table(cut))
    broken = [f for f in report.findings if f.kind == "truncated_trace"]
    assert [(f.ranks, f.phase, f.steps) for f in broken] == [((1,), "forward", (11, 11))]


@pytest.mark.parametrize(("received", "waits"), [(3, [8_000, 8_000, 8_000]), (2, [])])
def test_messages_without_a_number(received: int, waits: list[int]) -> None:
    """They are counted in order, if sender and receiver have equally many; else none is matched."""
    rows: list[dict[str, Any]] = []
    for turn in range(3):
        begin_us = 100 * turn
        fields = {"kind": "reduction", "step": turn, "host": "a"}
        rows += [
            {
                "rank": rank,
                "start_us": begin_us,
                "end_us": begin_us + 90,
                "kind": "step",
                "step": turn,
            }
            | {"host": "a", "op": None, "peer": None}
            for rank in (0, 1)
        ]
        rows.append(
            {"rank": 0, "start_us": begin_us + 18, "end_us": begin_us + 19, "op": "send", "peer": 1}
            | fields
        )
        if turn < received:
            rows.append(
                {
                    "rank": 1,
                    "start_us": begin_us + 10,
                    "end_us": begin_us + 20,
                    "op": "recv",
                    "peer": 0,
                }
                | fields
            )
    trace = Trace.from_table(pl.DataFrame(rows, infer_schema_length=None))
    waited = trace.message_waits.select(ns=pl.col("end_ns") - pl.col("start_ns"))
    assert waited["ns"].to_list() == waits
