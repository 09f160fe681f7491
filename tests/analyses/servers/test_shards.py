"""Shards are measured from both ends of their requests, and one that holds too much is named."""

from dataclasses import replace
from typing import cast

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from support.runs.analysed import faults, report, trace
from support.tiers import mark_slow

from tracelens.analyses.servers.shards import Shards
from tracelens.model.result import Report
from tracelens.model.trace import EVENT_COLUMNS
from tracelens.reports import to_text
from tracelens.simulator.synthetic import Scenario
from tracelens.verdicts.report import analyze

MIB = 1 << 20
HOT = Scenario(ranks=4, steps=40, shards=3, shard_bytes=(4 * MIB, 24 * MIB, 4 * MIB))


def test_the_hot_shard_is_named() -> None:
    """Which shard, how much of all bytes, and what it does to the workers."""
    (finding,) = faults(report(HOT))
    assert (finding.kind, finding.shards, finding.ranks) == ("ps_hot_shard", (1,), ())
    assert finding.sentence.startswith("PS shard 1 moves 2.2x the mean bytes (75 % of all;")
    assert finding.evidence["effective_shards"] == pytest.approx(32 / 24)


def test_loads_are_exact() -> None:
    """Bytes and requests of every shard are those that were pushed and pulled."""
    loads = cast("Shards", report(HOT).results["shards"]).loads
    assert loads["shard"].to_list() == [0, 1, 2]
    assert loads["bytes"].to_list() == [2 * 4 * 40 * size * MIB for size in (4, 24, 4)]
    assert loads["requests"].to_list() == [2 * 4 * 40] * 3
    assert loads["bytes_share"].sum() == pytest.approx(1)
    assert loads["queue_ns"][1] > 4 * loads["queue_ns"][0]


def test_even_shards_are_not_blamed() -> None:
    """Servers that cost much but evenly are no hot shard."""
    even = Scenario(ranks=4, steps=40, shards=3, aggregate_gbytes_per_s=0.5)
    assert faults(report(even)) == []


def test_a_hidden_shard_is_harmless() -> None:
    """A shard with most of the bytes is no fault if workers hardly wait for it."""
    small = Scenario(ranks=4, steps=40, shards=3, shard_bytes=(8192, 49152, 8192))
    assert faults(report(small)) == []


def test_a_run_without_servers_has_no_shards() -> None:
    """The table of shards is empty."""
    shards = cast("Shards", report(Scenario()).results["shards"])
    assert shards.loads.is_empty()
    assert shards.findings == ()


def report_without(scenario: Scenario, *columns: str) -> Report:
    """Return the report where workers do not record some columns of their requests."""
    run = trace(scenario)
    asked = pl.col("op").is_in(["push", "pull"])
    lost = [
        pl.when(asked).then(None).otherwise(pl.col(name)).cast(EVENT_COLUMNS[name]).alias(name)
        for name in columns
    ]
    return analyze(run.with_(events=run.events.with_columns(lost)))


def test_shards_are_known_by_the_requests_that_they_serve() -> None:
    """Workers need not record which shard they ask."""
    run_report = report_without(HOT, "shard")
    loads = cast("Shards", run_report.results["shards"]).loads
    assert loads["bytes"].to_list() == [2 * 4 * 40 * size * MIB for size in (4, 24, 4)]
    assert [one.kind for one in faults(run_report)] == ["ps_hot_shard"]


def test_servers_need_not_know_steps() -> None:
    """As those of TensorFlow's sessions: what they serve belongs to the step of who asked."""
    run = trace(HOT)
    served = pl.col("op").is_in(["receive", "aggregate", "apply", "reply"])
    step = pl.when(served).then(-1).otherwise(pl.col("step")).cast(EVENT_COLUMNS["step"])
    run_report = analyze(
        run.with_(events=run.events.with_columns(step=step), parts=None, outlines=None)
    )
    known = cast("Shards", report(HOT).results["shards"])
    shards = cast("Shards", run_report.results["shards"])
    assert_frame_equal(shards.loads, known.loads)
    assert shards.loads["cpu_share"].min() > 0  # type: ignore[operator]  # of floats
    assert [one.kind for one in faults(run_report)] == ["ps_hot_shard"]


@pytest.mark.parametrize("link", mark_slow([2.0, 0.5], quick=[0.5]))
@pytest.mark.parametrize("ranks", [1, 3])
def test_what_servers_do_not_see_of_pulls_is_saved_as_well(link: float, ranks: int) -> None:
    """Servers hand a reply to the network, and are done: the same run has the same saving."""
    scenario = replace(HOT, ranks=ranks, link_gbytes_per_s=link, shared_links=True)
    (finding,) = faults(report(scenario))
    run = trace(scenario)
    handed = pl.when(pl.col("op") == "reply").then(pl.col("start_ns") + 10_000)
    events = run.events.with_columns(end_ns=handed.otherwise(pl.col("end_ns")))
    found, *_ = faults(analyze(run.with_(events=events, parts=None, outlines=None)))
    assert (found.kind, found.shards) == (finding.kind, finding.shards)
    assert found.saving == pytest.approx(finding.saving, rel=0.03)


@pytest.mark.parametrize("columns", [("shard", "request"), ("bytes",)])
def test_bytes_that_nobody_measured_are_null(columns: tuple[str, ...]) -> None:
    """No shard has 0 bytes because workers did not say which they ask, or how much."""
    run_report = report_without(HOT, *columns)
    shards = cast("Shards", run_report.results["shards"])
    assert shards.loads.select("bytes", "bytes_share").null_count().row(0) == (3, 3)
    assert shards.placements.is_empty()
    assert [one.kind for one in run_report.findings if one.kind == "ps_hot_shard"] == []
    shown = to_text.render(run_report, width=120)
    assert "Parameter-server shards" in shown
    assert " 0 B" not in shown
