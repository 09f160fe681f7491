"""A run that loses nine tenths of its time to servers is not healthy, for any cause."""

from dataclasses import replace

import pytest
from support.runs.analysed import report
from support.tiers import mark_slow

from tracelens.simulator.synthetic import Fault, Scenario, duration_ns

MIB = 1 << 20
SERVERS = Scenario(ranks=8, steps=40, shards=3, shared_links=True, noise=0.05, bucket_bytes=MIB)
ONE = {
    "slow processor": (Fault("aggregate", (1,), factor=300.0), "ps_cpu_bound", "persistent"),
    "slow link": (Fault("wire", (1,), factor=200.0), "ps_network_bound", "persistent"),
    "pauses": (Fault("aggregate", (1,), factor=2000.0, every=5), "ps_cpu_bound", "sparse"),
    "pauses of its link": (Fault("wire", (1,), factor=2000.0, every=5), "ps_network_bound", "sparse"),
    "for a while": (
        Fault("aggregate", (1,), factor=1000.0, steps=(10, 19)), "ps_cpu_bound", "transient",
    ),
}  # fmt: skip
ALL = {
    "slow links": (replace(SERVERS, link_gbytes_per_s=0.02), "network-bound shards"),
    "slow processors": (replace(SERVERS, aggregate_gbytes_per_s=0.01), "CPU-bound shards"),
    "slow updates": (replace(SERVERS, apply_ms=150.0), "CPU-bound shards"),
    "both": (
        replace(SERVERS, aggregate_gbytes_per_s=0.04, link_gbytes_per_s=0.03),
        "network-bound shards",
    ),
    "one server for all": (replace(SERVERS, shards=1, aggregate_gbytes_per_s=0.02), "CPU-bound"),
}


@pytest.mark.parametrize("name", mark_slow(ONE, quick=("pauses of its link",)))
def test_one_server_is_the_fault(name: str) -> None:
    """Slow all the time, at times, or for a while; what it costs is what goes away."""
    fault, kind, pattern = ONE[name]
    scenario = replace(SERVERS, faults=(fault,))
    run_report = report(scenario)
    assert run_report.verdict.state == "fault"
    main_finding = run_report.findings[0]
    assert (main_finding.kind, main_finding.shards, main_finding.pattern) == (kind, (1,), pattern)
    truth = 1 - duration_ns(SERVERS) / duration_ns(scenario)
    assert main_finding.saving == pytest.approx(truth, rel=0.1)
    assert run_report.ledger
    assert run_report.ledger.unexplained < 0.05


def test_the_server_with_most_bytes_is_the_fault() -> None:
    """The server holds 97 % of the bytes."""
    run_report = report(replace(SERVERS, shard_bytes=(MIB, 64 * MIB, MIB)))
    assert (run_report.verdict.state, run_report.verdict.kind) == ("fault", "ps_hot_shard")
    assert run_report.ledger
    assert run_report.ledger.unexplained < 0.05


@pytest.mark.slow
def test_a_slow_worker_is_no_fault_of_servers() -> None:
    """Even though workers wait in the servers' queues."""
    late = Fault("backprop", (3,), factor=12.0)
    found = report(replace(SERVERS, faults=(late,)))
    assert (found.verdict.kind, found.findings[0].ranks) == ("straggler", (3,))


@pytest.mark.parametrize("name", mark_slow(ALL, quick=("both", "one server for all")))
def test_servers_that_are_all_too_slow_are_not_healthy(name: str) -> None:
    """No server is worse than the others, but the headline is what would help, and what is lost."""
    scenario, title = ALL[name]
    run_report = report(scenario)
    assert run_report.ledger
    assert run_report.ledger.useful < 0.1
    assert run_report.verdict.headline.startswith("BOUND BY parameter servers: ")
    assert title in run_report.verdict.headline


@pytest.mark.slow
def test_messages_that_are_long_on_the_way_are_communication() -> None:
    """Servers have nothing to do meanwhile."""
    run_report = report(replace(SERVERS, latency_us=60_000.0))
    assert [finding.kind for finding in run_report.findings] == ["exposed_communication"]
    assert run_report.verdict.headline.startswith("BOUND BY communication: ")
    assert run_report.ledger
    assert run_report.ledger.unexplained < 0.05


def test_what_no_finding_explains_is_inconclusive() -> None:
    """The verdict says what to record."""
    found = report(replace(SERVERS, steps=12, aggregate_gbytes_per_s=0.01))
    assert (found.verdict.state, found.findings) == ("inconclusive", ())
    assert "at least 20 steps" in found.verdict.action


@pytest.mark.slow
def test_one_long_pause_is_no_fault() -> None:
    once = Fault("aggregate", (1,), factor=2000.0, steps=(20, 20))
    assert report(replace(SERVERS, faults=(once,))).verdict.state != "fault"
