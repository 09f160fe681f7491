"""First runs of programs in which a rank hands out tasks: a slow worker is named, a healthy one not."""

from pathlib import Path

import pytest
from support.launch.mpi import launch
from support.launch.recording import recorded
from support.turns import select_turn

import tracelens as tl
from tracelens.accounting.core_waits import MIN_WAIT_FOR_CORES_IF_BUSY, measure_core_wait_of_run

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

PROGRAM = Path(__file__).parents[1] / "support" / "launch" / "programs" / "tasks_mpi.py"
RANKS = 4
STYLES = select_turn(("tags", "array", "any"))
MANY, FEW = 240, 45  # tasks: 30 steps are judged, which are tasks of the fastest worker


def report(folder: Path, style: str, fault: str, tasks: int) -> tl.Report:
    """Record a run as it is, and explain it."""
    return tl.analyze(recorded(folder, [*launch(PROGRAM, RANKS), style, fault, str(tasks)]))


@pytest.mark.parametrize("style", STYLES)
def test_a_slow_worker_is_named(style: str, tmp_path: Path) -> None:
    """Nobody waits for it, but others do its work; no rank has left that has taken its last task."""
    analyzed = report(tmp_path / "t", style, "slow", MANY)
    assert [(finding.kind, finding.ranks) for finding in analyzed.findings] == [("straggler", (2,))]
    assert analyzed.verdict.headline.startswith("STRAGGLER rank 2")
    assert "the others make the steps that it does not" in analyzed.findings[0].sentence


@pytest.mark.alone
@pytest.mark.parametrize("style", STYLES)
def test_of_few_tasks_it_is_said_who_takes_longest(style: str, tmp_path: Path) -> None:
    """In too few steps to be judged, which are no reason to call the run healthy."""
    verdict = report(tmp_path / "t", style, "slow", FEW).verdict
    assert verdict.state == "inconclusive"
    assert verdict.headline.startswith("INCONCLUSIVE: rank 2 takes ")
    assert "rank 0, which hands them out, waits" in verdict.why
    assert "Wrap a task in a span" in verdict.action


@pytest.mark.alone
@pytest.mark.parametrize("style", STYLES)
def test_no_worker_is_accused_without_a_fault(style: str, tmp_path: Path) -> None:
    """Though tasks differ, and ranks make unequally many; that rank 0 often waits is no fault."""
    trace = recorded(tmp_path / "t", [*launch(PROGRAM, RANKS), style, "none", str(MANY)])
    analyzed = tl.analyze(trace)
    busy = (measure_core_wait_of_run(trace) or 0.0) >= MIN_WAIT_FOR_CORES_IF_BUSY
    headline = analyzed.verdict.headline
    if busy:
        assert analyzed.verdict.state == "inconclusive"
    else:
        assert headline.startswith(("HEALTHY", "BOUND BY a rank that waits for requests"))
    assert [finding.sentence for finding in analyzed.findings if finding.category == "fault"] == []
