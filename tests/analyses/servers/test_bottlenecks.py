"""Servers held up by processors, by links and by incast are told apart, with what fixing each saves."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
import polars as pl
import pytest
from support.runs.analysed import faults, report, trace
from support.tiers import few_or_many, mark_slow

from tracelens.analyses.servers import utilisation
from tracelens.analyses.servers.shards import Shards
from tracelens.model.findings import Finding
from tracelens.model.trace import Trace
from tracelens.simulator.synthetic import Fault, Scenario, duration_ns
from tracelens.verdicts.report import analyze

SERVERS = Scenario(ranks=4, steps=40, shards=3, bucket_bytes=1 << 20)
SHARED = replace(SERVERS, ranks=8, shared_links=True, bucket_bytes=4 << 20)
INCAST = replace(SHARED, incast=0.5)
KINDS = ("ps_cpu_bound", "ps_network_bound", "ps_incast")


def measure(scenario: Scenario) -> Shards:
    """Measure the shards of a run."""
    return cast("Shards", report(scenario).results["shards"])


def single_finding(scenario: Scenario) -> Finding:
    """Return the one finding of these kinds."""
    (found,) = (finding for finding in report(scenario).findings if finding.kind in KINDS)
    return found


def measure_saving(scenario: Scenario, fixed: Scenario) -> float:
    """Return the share of the job that goes away."""
    return 1 - duration_ns(fixed) / duration_ns(scenario)


@pytest.mark.parametrize(
    ("ranks", "noise", "factor", "bound"),
    [
        (SERVERS.ranks, 0.1, 40.0, "cpu"),
        pytest.param(SERVERS.ranks, 0.02, 40.0, "cpu", marks=pytest.mark.slow),
        # Pushes come so far apart that no shard is busy for a whole window.
        pytest.param(16, 0.4, 10.0, None, marks=pytest.mark.slow),
    ],
)
def test_a_shard_with_a_slow_processor_is_a_fault(
    ranks: int, noise: float, factor: float, bound: str | None
) -> None:
    """Which one, how many times slower per byte, and what it costs."""
    slow = Fault("aggregate", (1,), factor=factor)
    scenario = replace(SERVERS, ranks=ranks, noise=noise, faults=(slow,))
    found = single_finding(scenario)
    assert (found.kind, found.category, found.shards) == ("ps_cpu_bound", "fault", (1,))
    assert found.saving == pytest.approx(
        measure_saving(scenario, replace(scenario, faults=())), rel=0.1
    )
    assert measure(scenario).loads["bound"].to_list() == [None, bound, None]


@pytest.mark.parametrize("noise", mark_slow([0.02, 0.1], quick=[0.1]))
def test_a_shard_with_a_slow_link_is_a_fault(noise: float) -> None:
    """It is its network, not its processor, and not what it holds."""
    slow = Fault("wire", (2,), factor=8.0)
    scenario = replace(SHARED, noise=noise, faults=(slow,))
    finding = single_finding(scenario)
    assert (finding.kind, finding.category, finding.shards) == ("ps_network_bound", "fault", (2,))
    assert finding.saving == pytest.approx(
        measure_saving(scenario, replace(scenario, faults=())), rel=0.1
    )
    assert finding.slowdown == pytest.approx(8.0, rel=0.1)


@pytest.mark.slow
def test_slow_processors_of_all_are_an_opportunity() -> None:
    """Nothing is wrong with one of them; twice as fast ones would save what is said."""
    scenario = replace(SERVERS, aggregate_gbytes_per_s=0.2, apply_ms=0.4)
    finding = single_finding(scenario)
    assert (finding.kind, finding.category) == ("ps_cpu_bound", "opportunity")
    twice = replace(scenario, aggregate_gbytes_per_s=0.4, apply_ms=0.2)
    assert finding.saving == pytest.approx(measure_saving(scenario, twice), rel=0.1)
    assert faults(report(scenario)) == []


def test_slow_links_of_all_are_an_opportunity() -> None:
    scenario = replace(SHARED, link_gbytes_per_s=0.5)
    finding = single_finding(scenario)
    assert (finding.kind, finding.category) == ("ps_network_bound", "opportunity")
    twice = replace(scenario, link_gbytes_per_s=1.0)
    assert finding.saving == pytest.approx(measure_saving(scenario, twice), rel=0.1)
    assert set(measure(scenario).loads["bound"]) == {"network"}


@pytest.mark.parametrize("noise", [0.02, 0.2])
@pytest.mark.parametrize("ranks", mark_slow([8, 16], quick=[8]))
def test_incast_is_a_fault(noise: float, ranks: int) -> None:
    """The link's throughput falls with the number of pushes; the run without it is as short as said."""
    scenario = replace(INCAST, noise=noise, ranks=ranks)
    finding = single_finding(scenario)
    assert (finding.kind, finding.category, finding.shards) == ("ps_incast", "fault", (0, 1, 2))
    assert finding.evidence["best_goodput"] == pytest.approx(2.0, rel=0.1)
    assert finding.saving == pytest.approx(
        measure_saving(scenario, replace(scenario, incast=0.0)), rel=0.15
    )


def test_a_fair_link_has_one_goodput() -> None:
    """The number of senders on it makes no difference."""
    links = measure(replace(SHARED, noise=0.2)).loads
    assert links["goodput"].to_list() == pytest.approx([2.0] * 3, rel=0.02)
    assert links["best_goodput"].to_list() == pytest.approx([2.0] * 3, rel=0.1)


def test_goodput_follows_the_number_of_messages() -> None:
    """Its equations are single messages: here 4 bytes/ns for one alone, 1 for four together."""
    alone = [{"start_ns": 10_000 * n, "end_ns": 10_000 * n + 1_000} for n in range(80)]
    four = [
        {"start_ns": 10**7 + 10_000 * n, "end_ns": 10**7 + 10_000 * n + 4_000 * 4}
        for n in range(0, 320, 4)
        for _ in range(4)
    ]
    rows = pl.DataFrame(alone + four).with_columns(bytes=4_000, shard=0, op=pl.lit("receive"))
    link = utilisation.measure_goodput(rows)[0]
    assert link.message_counts == (1, 4)
    assert link.bytes_per_ns_by_class == pytest.approx((4.0, 1.0), rel=0.01)
    assert link.is_crowd_slower
    assert utilisation.measure_goodput(rows.head(10)) == {}


@pytest.mark.parametrize(("reply_ns", "best"), [(1_000, 4.0), (40_000, 1.0)])
def test_what_a_link_sends_it_could_receive(reply_ns: int, best: float) -> None:
    """Pushes always arrive in fours, so only replies show whether the link could carry more."""
    at = range(0, 10**7, 100_000)
    pushes = [
        {"start_ns": n, "end_ns": n + 16_000, "request": n + row} for n in at for row in range(4)
    ]
    replies = [
        {"start_ns": n, "end_ns": n + 500, "request": n + 10 + row}
        for row in range(4)
        for n in range(50_000 + row * reply_ns, 10**7, 100_000)
    ]
    about = {"bytes": 4_000, "shard": 0}
    served = pl.DataFrame(
        [reply | about | {"op": "receive"} for reply in pushes]
        + [reply | about | {"op": "reply"} for reply in replies]
    ).sort("start_ns")
    pulls = [
        {"op": "pull", "request": reply["request"], "end_ns": reply["start_ns"] + reply_ns}
        for reply in replies
    ]
    link = utilisation.measure_goodput(served, pl.DataFrame(pulls))[0]
    assert link.mean_bytes_per_ns == pytest.approx(1.0)
    assert link.best_bytes_per_ns == pytest.approx(best, rel=0.01)
    assert link.is_crowd_slower == (best > 1)


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(replace(SERVERS, bucket_bytes=1 << 16), marks=pytest.mark.slow),
        replace(SERVERS, bucket_bytes=1 << 16, aggregate_gbytes_per_s=0.5),
        pytest.param(replace(INCAST, bucket_bytes=1 << 15), marks=pytest.mark.slow),
        Scenario(ranks=4, steps=40),
    ],
    ids=["little to move", "slow processors, little to do", "incast of little", "no servers"],
)
def test_what_costs_nothing_is_not_told(scenario: Scenario) -> None:
    """Servers that workers hardly wait for are no matter, however they are bound."""
    assert [found.kind for found in report(scenario).findings if found.kind in KINDS] == []


@pytest.mark.parametrize("runs", few_or_many(2, 12))
def test_healthy_servers_are_left_alone(runs: int) -> None:
    """No run with noisy workers and shards has a fault."""
    for seed in range(runs):
        base = SHARED if seed % 2 else SERVERS
        healthy = replace(base, seed=seed, noise=0.05 + 0.05 * (seed % 4))
        findings = [
            found.kind
            for found in faults(report(healthy))
            if found.kind in (*KINDS, "ps_hot_shard")
        ]
        assert findings == []


@pytest.mark.slow
def test_rounds_that_differ_are_not_played_again() -> None:
    """Where one worker misses a request, the price is estimated from the shards' work instead."""
    slow = replace(SERVERS, faults=(Fault("aggregate", (1,), factor=40.0),))
    recorded = trace(slow)
    events = recorded.events.collect()
    lost = (pl.col("step") == 20) & (pl.col("rank") == 2) & (pl.col("op") == "pull")
    run_report = analyze(recorded.with_(events=events.filter(~lost.fill_null(value=False)).lazy()))
    (finding,) = faults(run_report)
    assert (finding.kind, finding.shards) == ("ps_cpu_bound", (1,))
    truth = measure_saving(slow, replace(slow, faults=()))
    assert finding.saving == pytest.approx(truth, rel=0.3)
    assert np.isfinite(finding.saving or 0.0)


def run_with_a_missing_pull(scenario: Scenario) -> Trace:
    """Return a run in which one worker misses a request, so that rounds cannot be replayed."""
    whole = trace(scenario)
    lost = (pl.col("step") == 20) & (pl.col("rank") == 2) & (pl.col("op") == "pull")
    return whole.with_(events=whole.events.filter(~lost.fill_null(value=False)))


@pytest.mark.parametrize("made", [trace, run_with_a_missing_pull], ids=["replayed", "not replayed"])
def test_servers_that_hardly_work_bind_nothing(made: Callable[[Scenario], Trace]) -> None:
    """Requests are on their way for long: neither processors nor bandwidth would help."""
    found = analyze(made(replace(SERVERS, latency_us=5_000.0))).findings
    assert [one.kind for one in found if one.kind in KINDS] == []


@pytest.mark.slow
def test_no_part_saves_more_than_it_works() -> None:
    """Whatever binds the servers, and whether or not rounds are replayed."""
    slow = Fault("aggregate", (1,), factor=10.0)
    for scenario in (
        replace(SERVERS, aggregate_gbytes_per_s=0.2, apply_ms=0.4),
        replace(SERVERS, ranks=16, noise=0.4, faults=(slow,)),
        replace(SHARED, link_gbytes_per_s=0.5),
    ):
        for run_report in (report(scenario), analyze(run_with_a_missing_pull(scenario))):
            assert run_report.ledger
            lost = 1 - run_report.ledger.useful
            (one,) = (one for one in run_report.findings if one.kind in KINDS)
            assert (one.saving or 0.0) <= one.evidence["share_of_window"] * lost


def test_a_processor_that_idles_is_not_called_busy() -> None:
    """Where pushes come far apart, what is waited for is said with how little it is at work."""
    slow = Fault("aggregate", (1,), factor=10.0)
    found = single_finding(replace(SERVERS, ranks=16, noise=0.4, faults=(slow,)))
    assert found.evidence["share_of_window"] < 0.8
    assert found.sentence.startswith("PS shard 1 is CPU-bound at times (processor busy ")
