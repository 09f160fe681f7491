"""Real parameter servers and workers on clocks minutes apart: their requests bring them together."""

from pathlib import Path

import pytest
from support.launch.examples import record_example
from support.launch.shifted import skip_if_clocks_cannot_be_shifted

import tracelens as tl

pytestmark = [pytest.mark.end_to_end, pytest.mark.root, pytest.mark.slow]

SCRIPT = "grpc_parameter_server.py"
SHIFTS = {("ps", 0): 25.5, ("ps", 1): 300.25, ("worker", 0): 0.0, ("worker", 1): 1000.125}
SECOND_NS = 10**9


def test_requests_tie_the_clocks(tmp_path: Path) -> None:
    """To within what is stated, which is less than what wall clocks are worth."""
    skip_if_clocks_cannot_be_shifted()
    shift = f"--shift={','.join(map(str, SHIFTS.values()))}"
    record_example(SCRIPT, 2, tmp_path / "t", "--steps=60", "--hidden=64", shift)
    trace = tl.open(tmp_path / "t")
    assert trace.alignment.method == "requests"
    hosts_by_domain = {host.clock_domain: host for host in trace.alignment.hosts}
    assert len(hosts_by_domain) == len(SHIFTS)
    for role, rank, domain in trace.processes.select("role", "rank", "clock_domain").iter_rows():
        host = hosts_by_domain[domain]
        assert host.uncertainty_ns is not None
        assert host.uncertainty_ns < 2_000_000
        truth = SHIFTS[role, rank] * SECOND_NS
        assert abs(host.offset_ns - truth) <= host.uncertainty_ns, (role, rank)
    assert not [note for note in trace.notes if note.kind == "clock"]
