"""Where variables should lie: loads, what bounds them, and a gain that the placed run then has."""

from dataclasses import replace
from typing import cast

import polars as pl
import pytest
from support.runs.analysed import report, trace
from support.tiers import mark_slow

from tracelens.analyses.servers.shards import Shards
from tracelens.model.trace import Trace
from tracelens.reports import to_markdown, to_text
from tracelens.simulator.synthetic import Scenario, duration_ns
from tracelens.verdicts.report import analyze

MIB = 1 << 20
VARIABLES = (9 * MIB, MIB, 6 * MIB, MIB, 2 * MIB, 3 * MIB, MIB // 16, MIB // 4)
DEALT = Scenario(ranks=4, steps=40, shards=4, variables=VARIABLES, noise=0.01)


def placements(scenario: Scenario) -> dict[str, dict[str, float]]:
    """Return the table by placement."""
    table = cast("Shards", report(scenario).results["shards"]).placements
    return {row["placement"]: row for row in table.to_dicts()}


def test_loads_are_those_of_the_strategies() -> None:
    """Now, and by each strategy; whole variables have no less than the largest one, chunks the mean."""
    table = placements(DEALT)
    assert table["now"]["most_bytes"] == 11 * MIB
    assert table["largest_first"]["most_bytes"] == table["greedy"]["most_bytes"] == 9 * MIB
    assert table["largest_first"]["least_bytes"] == 9 * MIB
    assert table["chunked"]["least_bytes"] == sum(VARIABLES) // 4
    assert table["now"]["effective_shards"] == pytest.approx(sum(VARIABLES) / (11 * MIB))


@pytest.mark.parametrize(
    "placement", mark_slow(["greedy", "largest_first", "chunked"], quick=["greedy"])
)
@pytest.mark.parametrize("link", mark_slow([1.0, 4.0], quick=[1.0]))
def test_the_gain_is_that_of_the_placed_run(placement: str, link: float) -> None:
    """Simulated with that placement, the run is shorter by what was predicted."""
    scenario = replace(DEALT, link_gbytes_per_s=link)
    placed = replace(scenario, placement=placement)
    if (
        placement == "chunked"
    ):  # in pieces of its own size: 32 KiB each would be thousands of requests
        even = (sum(VARIABLES) // 4,) * 4
        placed = replace(scenario, variables=(), shard_bytes=even)
    truth = 1 - duration_ns(placed) / duration_ns(scenario)
    assert placements(scenario)[placement]["saving"] == pytest.approx(truth, rel=0.2, abs=0.02)


def test_the_variable_that_bounds_is_named() -> None:
    """With what splitting it would save, in the finding and in the reports that people read."""
    finding = next(one for one in report(DEALT).findings if one.kind == "ps_hot_shard")
    assert finding.tensor == "variable 0"
    assert "while variable 0 (9.0 MiB) is whole" in finding.sentence
    assert len(finding.evidence["placements"]) == 4
    for text in (to_text.render(report(DEALT), width=120), to_markdown.render(report(DEALT))):
        assert "Variable placement" in text
        assert "chunked" in text


def test_without_keys_only_chunks_are_advised() -> None:
    """What a shard's bytes consist of is not known, but that they could be dealt out evenly."""
    hot = Scenario(ranks=4, steps=40, shards=3, shard_bytes=(24 * MIB, 4 * MIB, 4 * MIB))
    table = placements(hot)
    assert set(table) == {"now", "chunked"}
    found = next(one for one in report(hot).findings if one.kind == "ps_hot_shard")
    assert found.tensor is None
    assert found.saving == pytest.approx(table["chunked"]["saving"], rel=0.02)


def test_one_shard_has_nothing_to_even_out() -> None:
    """With one shard the analysis gives no advice."""
    alone = Scenario(ranks=4, steps=40, shards=1)
    assert placements(alone)["chunked"]["saving"] == 0
    assert [one.kind for one in report(alone).findings if one.kind == "ps_hot_shard"] == []


def read_placements(run: Trace, *, keep: pl.Expr) -> dict[str, dict[str, float | None]]:
    """Return the table of a run without some of its events."""
    found = analyze(run.with_(events=run.events.filter(keep.fill_null(value=True))))
    table = cast("Shards", found.results["shards"]).placements
    return {row["placement"]: row for row in table.to_dicts()}


def test_a_missing_request_changes_no_saving() -> None:
    """One worker misses a pull: the rest of the run is replayed as it was."""
    lost = (pl.col("step") == 20) & (pl.col("rank") == 2) & (pl.col("op") == "pull")
    table, whole = read_placements(trace(DEALT), keep=~lost), placements(DEALT)
    assert table["chunked"]["saving"] == pytest.approx(whole["chunked"]["saving"], rel=0.1)


def test_what_cannot_be_replayed_has_no_saving() -> None:
    """Servers did not record when they received pushes: loads are known, savings are not, nor zero."""
    receives = pl.col("op").cast(pl.String) == "receive"
    events = trace(DEALT).events.filter(~receives.fill_null(value=False))
    run_report = analyze(trace(DEALT).with_(events=events, parts=None, outlines=None))
    table = cast("Shards", run_report.results["shards"]).placements
    assert table["effective_shards"][-1] == pytest.approx(4.0, rel=0.05)
    assert table.filter(pl.col("placement") != "now")["saving"].null_count() == table.height - 1
    (hot,) = (one for one in run_report.findings if one.kind == "ps_hot_shard")
    assert (hot.saving, hot.interval, hot.shards) == (None, None, (0,))
    assert "not known: placement=chunked: not recorded: when servers received" in hot.sentence


def test_waits_without_a_reason_have_no_saving() -> None:
    """Of half of the steps requests are missing, and workers are blocked there as they were."""
    asks = pl.col("kind") == "ps"
    table = read_placements(trace(DEALT), keep=~(asks & (pl.col("step") >= 20)))
    assert {row["saving"] for name, row in table.items() if name != "now"} == {None}


def test_pulls_beside_compute_need_keys_to_be_moved() -> None:
    """Without them nothing tells when a worker needs what comes from which shard."""
    run = trace(replace(DEALT, beside_compute=True))
    events = run.events.with_columns(key=pl.lit(None, pl.Int32))
    found = analyze(run.with_(events=events, parts=None, outlines=None))
    (hot,) = (one for one in found.findings if one.kind == "ps_hot_shard")
    assert hot.saving is None
    assert "not recorded: the variables (key) of requests" in hot.sentence
