"""Real servers over gRPC whose workers meet at a barrier: the slow shard and the saving by its fix."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from support.launch.examples import run_example

import tracelens as tl

if TYPE_CHECKING:
    Reported = Callable[..., tl.Report]

pytestmark = [pytest.mark.alone, pytest.mark.end_to_end, pytest.mark.slow]

WORKERS = 2
TRAINING = ("--mode=sync", "--shards=2", "--steps=60", "--hidden=96")
LATE = ("--slow-rank=1", "--slow-ms=40")


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """Train and explain, once for all tests that look at it."""

    @functools.cache
    def train(*more: str) -> tl.Report:
        folder = tmp_path_factory.mktemp("trained") / "t"
        done = run_example("grpc_parameter_server.py", WORKERS, folder, *TRAINING, *more)
        assert done.returncode == 0, done.stderr
        return tl.analyze(tl.open(folder))

    return train


def job_ns(report: tl.Report) -> int:
    assert report.efficiency
    return report.efficiency.job_ns


def saved_share(faulty: tl.Report, fixed: tl.Report) -> float:
    """Return the saved share of the job's time, 0 to 1."""
    return 1 - job_ns(fixed) / job_ns(faulty)


def test_a_shard_that_updates_slowly_is_named(reported: Reported) -> None:
    """Workers stand at the barrier; what they wait for is the shard and its update."""
    report, fixed = reported(*LATE, "--slow-phase=update"), reported()
    finding = report.findings[0]
    assert (finding.kind, finding.category, finding.shards) == ("ps_cpu_bound", "fault", (1,))
    assert "is applying updates" in finding.sentence
    assert finding.saving == pytest.approx(saved_share(report, fixed), abs=0.1)
    assert report.ledger
    assert report.ledger.unexplained < 0.05


def test_a_slow_worker_costs_what_fixing_it_saves(reported: Reported) -> None:
    """All wait for its push, and then go on together."""
    report, fixed = reported(*LATE, "--slow-phase=backprop"), reported()
    first = report.findings[0]
    assert (first.kind, first.ranks, first.phase) == ("straggler", (1,), "backprop")
    assert first.saving == pytest.approx(saved_share(report, fixed), abs=0.1)
    assert report.ledger
    assert report.ledger.unexplained < 0.05


def test_without_a_fault_nobody_is_accused(reported: Reported) -> None:
    """And what workers wait for is known."""
    report = reported()
    assert [one.sentence for one in report.findings if one.category == "fault"] == []
    assert report.ledger
    assert (
        report.ledger.unexplained < 0.1
    )  # beside other processes, threads come late to their turn
