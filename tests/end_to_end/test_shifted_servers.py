"""Real parameter servers and workers on clocks minutes apart: their requests bring them together."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.record import run_record
from support.shifted import skip_if_clocks_cannot_be_shifted

import tracelens as tl

pytestmark = [pytest.mark.end_to_end, pytest.mark.root]

LAUNCHER = Path(__file__).parents[1] / "hooks" / "scripts" / "grpc_on_shifted_clocks.py"
SHIFTS = {("ps", 0): 25.5, ("ps", 1): 300.25, ("worker", 0): 0.0, ("worker", 1): 1000.125}
SECOND_NS = 10**9


def test_requests_tie_the_clocks(tmp_path: Path) -> None:
    """To within what is stated, which is less than what wall clocks are worth."""
    skip_if_clocks_cannot_be_shifted()
    command = [sys.executable, str(LAUNCHER), *map(str, SHIFTS.values())]
    done = run_record("--out", tmp_path / "t", "--", *command)
    assert done.returncode == 0, done.stderr
    trace = tl.open(tmp_path / "t")
    assert trace.alignment.method == "requests"
    found = {host.clock_domain: host for host in trace.alignment.hosts}
    assert len(found) == len(SHIFTS)
    for role, rank, domain in trace.processes.select("role", "rank", "clock_domain").iter_rows():
        host = found[domain]
        assert host.uncertainty_ns is not None
        assert host.uncertainty_ns < 2_000_000
        truth = SHIFTS[role, rank] * SECOND_NS
        assert abs(host.offset_ns - truth) <= host.uncertainty_ns, (role, rank)
    assert not [note for note in trace.notes if note.kind == "clock"]
