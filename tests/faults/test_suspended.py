"""A process or a host that stands still for an hour: the step is named, and how long it was."""

from dataclasses import replace
from pathlib import Path

import pytest

from tracelens import load
from tracelens.accounting import phases
from tracelens.simulator.scenario import Clock
from tracelens.simulator.synthetic import Fault, Scenario, write
from tracelens.verdicts.report import analyze

HOUR_MS = 3_600_000.0
RUN = Scenario(ranks=4, steps=60, ranks_per_host=2)
STEP = 30


@pytest.mark.parametrize("ranks", [(2,), (2, 3)], ids=["a process", "a host"])
def test_standing_still_for_an_hour(ranks: tuple[int, ...], tmp_path: Path) -> None:
    """Its clock goes on, as where a virtual machine is paused, or a process is stopped."""
    write(
        replace(RUN, faults=(Fault("backprop", ranks, (STEP, STEP), extra_ms=HOUR_MS),)), tmp_path
    )
    trace = load.open(tmp_path)
    report = analyze(trace)
    (found,) = (one for one in report.findings if one.category == "fault")
    assert (found.ranks, found.steps, found.phase) == (ranks, (STEP, STEP), "backprop")
    assert f"in step {STEP}, by 1.00 h" in found.sentence
    waits = phases.run(trace).times.filter(category="wait", step=STEP).sort("rank")
    hours = {rank: round(ns / 3.6e12) for rank, ns in waits.select("rank", "ns").iter_rows()}
    assert {rank for rank, waited in hours.items() if waited == 1} == {*range(4)} - {*ranks}


@pytest.mark.parametrize("host", [0, 1])
def test_a_clock_that_stands_still_for_an_hour(host: int, tmp_path: Path) -> None:
    """As Linux' does while a host is suspended: it jumps by an hour, and nobody is slow."""
    write(RUN, tmp_path / "before")
    steps = load.open(tmp_path / "before").steps
    first, begun = (some["start_ns"].to_numpy().min() for some in (steps, steps.filter(step=STEP)))
    clocks = [Clock(offset_ns=10**13), Clock(offset_ns=10**13)]
    middle_ms = float(begun - first) / 1e6 + HOUR_MS / 2
    clocks[host] = replace(clocks[host], jump_ns=-int(HOUR_MS * 1e6), jump_after_ms=middle_ms)
    hour = Fault("backprop", (2 * host, 2 * host + 1), (STEP, STEP), extra_ms=HOUR_MS)
    write(replace(RUN, faults=(hour,), clocks=tuple(clocks)), tmp_path / "run")
    trace = load.open(tmp_path / "run")
    assert [found.kind for found in analyze(trace).findings] == ["clock_jump"]
    (jump,) = (jump for one in trace.alignment.hosts for jump in one.jumps)
    assert isinstance(jump, int)
    assert max(abs(one.drift_ppm) for one in trace.alignment.hosts) < 10
    assert all("cannot be" not in note.sentence for note in trace.notes)
