"""A run tells the same with its work on devices as on threads: analyses look where the work is."""

from dataclasses import replace
from typing import cast

import polars as pl
import pytest
from support.runs.analysed import faults, report, trace

from tracelens.analyses.interleaving import Interleaving
from tracelens.simulator.synthetic import Fault, Scenario, random_clocks
from tracelens.verdicts.report import analyze

OVERLAPPED = Scenario(ranks=4, steps=60, transfer_ms=3.0, buckets=4)
BLOCKING = Scenario(ranks=4, steps=60, transfer_ms=3.0, overlap=False)
SLOW = Scenario(ranks=4, steps=80, faults=(Fault("backprop", (2,), steps=(20, 59), factor=1.5),))
TWO_HOSTS = Scenario(ranks=4, ranks_per_host=2, steps=60, clocks=random_clocks(2))
NOISE_NS = 60 * 4 * 10_000  # of the clocks, for each collective


def on_device(scenario: Scenario) -> Scenario:
    return replace(scenario, on_device=True)


def measure_interleaving(scenario: Scenario) -> Interleaving:
    return cast("Interleaving", report(scenario).results["interleaving"])


@pytest.mark.parametrize("scenario", [OVERLAPPED, BLOCKING, TWO_HOSTS])
def test_overlap_is_that_of_the_streams(scenario: Scenario) -> None:
    """What is hidden, waited for and transferred; the hosts, which only queue, look different."""
    threads, devices = (
        measure_interleaving(scenario).overlap,
        measure_interleaving(on_device(scenario)).overlap,
    )
    for name in ("hidden_ns", "wait_ns", "transfer_ns", "backprop_ns"):
        assert devices[name].to_list() == pytest.approx(threads[name].to_list(), abs=NOISE_NS), name
    assert devices["overlap"].to_list() == pytest.approx(threads["overlap"].to_list(), abs=0.01)


def test_the_opportunity_is_the_same() -> None:
    """Transfer that nothing hides is told with the same price."""
    (finding,) = report(on_device(BLOCKING)).findings
    (known,) = report(BLOCKING).findings
    assert finding.kind == known.kind == "exposed_communication"
    assert finding.saving == pytest.approx(known.saving, rel=0.01)


def test_a_slow_device_is_found() -> None:
    """Its rank, phase and steps; on the host it queued as quickly as the others."""
    (fault,) = faults(report(on_device(SLOW)))
    (finding,) = faults(report(SLOW))
    assert (fault.kind, fault.ranks, fault.phase) == ("straggler", (2,), "backprop")
    assert fault.steps == finding.steps
    assert fault.saving == pytest.approx(finding.saving, rel=0.02)


@pytest.mark.parametrize("scenario", [OVERLAPPED, TWO_HOSTS])
def test_a_healthy_run_has_no_fault(scenario: Scenario) -> None:
    """Nor does the clock of a device make a note of itself."""
    run_report = report(on_device(scenario))
    assert faults(run_report) == []
    assert trace(on_device(scenario)).notes == ()
    efficiency, usual_efficiency = run_report.efficiency, report(scenario).efficiency
    assert efficiency is not None
    assert usual_efficiency is not None
    assert efficiency.achieved == pytest.approx(usual_efficiency.achieved, abs=0.01)


def test_hosts_are_aligned_by_what_their_devices_did() -> None:
    """Exits of collectives tie hosts together; on the host a reduction ends when it is queued."""
    aligned = trace(on_device(TWO_HOSTS)).alignment
    assert aligned.method == "collective_exits"
    truth = TWO_HOSTS.clocks[1].offset_ns - TWO_HOSTS.clocks[0].offset_ns
    assert aligned.hosts[1].offset_ns == pytest.approx(truth, abs=5_000)


def test_what_a_phase_may_wait_for_within_itself_keeps_a_run_from_being_healthy() -> None:
    """Weights that a phase needs hold its stream up inside of it; buckets are awaited later."""
    run = trace(on_device(OVERLAPPED))
    gathered = run.events.with_columns(pl.lit(None, pl.Int32).alias("bucket"))
    run_report = analyze(run.with_(events=gathered, parts=None, outlines=None))
    assert run_report.verdict.state == "inconclusive"
    assert "communication is in flight" in run_report.verdict.headline
    assert "torch.profiler" in run_report.verdict.action
    known = report(on_device(OVERLAPPED))
    assert known.verdict.state != "inconclusive"
    for one, at_most in ((run_report, True), (known, False)):
        assert one.efficiency is not None
        assert one.efficiency.at_most is at_most
