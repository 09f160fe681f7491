"""A process or a host that stands still for an hour is no straggler: it is late once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tracelens import load
from tracelens.accounting import phases
from tracelens.analyses import analyze
from tracelens.simulator.synthetic import Fault, Scenario, write

if TYPE_CHECKING:
    from pathlib import Path

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
    assert [found for found in report.findings if found.category == "fault"] == []
    waits = phases.run(trace).times.filter(category="wait", step=STEP).sort("rank")
    hours = {rank: round(ns / 3.6e12) for rank, ns in waits.select("rank", "ns").iter_rows()}
    assert {rank for rank, waited in hours.items() if waited == 1} == {*range(4)} - {*ranks}
