"""Every loss is accounted for once: claimed by a finding, known, jitter, or unexplained."""

import pytest
from support.runs.analysed import RUNS, report
from support.runs.sound import check_ledger


def test_a_straggler_claims_what_others_wait() -> None:
    """What is left is jitter, and hardly anything unexplained."""
    run_report = report(RUNS["slow rank"][0])
    ledger = check_ledger(run_report)
    claimed = [loss for loss in ledger.losses if loss.cause == "finding"]
    assert [(loss.category, loss.finding) for loss in claimed] == [("wait", 0)]
    assert claimed[0].share == pytest.approx(run_report.findings[0].cost)
    assert ledger.unexplained < 0.01
    assert (ledger.awaited_rank, run_report.verdict.state) == (2, "fault")


# What takes a tenth of the time or more, though nothing is wrong.
BOTTLENECKS = {
    "blocking": "communication",
    "noisy": "waits between ranks",
    "checkpoints": "checkpoints",
    "even shards": "parameter servers",
}


@pytest.mark.parametrize("run", [name for name, (_, faults) in RUNS.items() if not faults])
def test_healthy_runs_have_hardly_anything_unexplained(run: str) -> None:
    """So they may be called healthy; those that are too short to judge, or of one rank, too."""
    run_report = report(RUNS[run][0])
    if run == "short":  # a rank takes three times as long, in too few steps to be sure
        assert run_report.verdict.state == "bottleneck"
        assert "forward (mostly rank 1)" in run_report.verdict.headline
    else:
        assert check_ledger(run_report).unexplained < 0.05
        bound = BOTTLENECKS.get(run)
        if run == "alone":
            assert run_report.verdict.headline.startswith("INCONCLUSIVE: one rank alone")
            return
        assert run_report.verdict.state == ("bottleneck" if bound else "healthy")
        assert run_report.verdict.headline.startswith(f"BOUND BY {bound}" if bound else "HEALTHY")
