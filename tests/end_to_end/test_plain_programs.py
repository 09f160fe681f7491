"""A first run of a program as it is: who makes the others wait is named, wherever no span covers it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.launch.mpi import launch
from support.launch.patience import PATIENCE_S
from support.launch.recording import clean_environment

import tracelens as tl

pytestmark = pytest.mark.end_to_end

SCRIPT = Path(__file__).parents[1] / "support" / "launch" / "programs" / "plain_mpi.py"
RANKS = 3
MARKS = ("none", "step", "phases")


def explained(folder: Path, fault: str, marks: str) -> tuple[tl.Report, str]:
    """Record a run, and return its report and what `record` printed."""
    tracelens = str(Path(sys.executable).with_name("tracelens"))
    command = [*launch(SCRIPT, RANKS), fault, marks]
    done = subprocess.run(
        [tracelens, "record", "--out", str(folder), "--", *command],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return tl.analyze(tl.open(folder)), done.stderr


@pytest.mark.parametrize("marks", MARKS)
@pytest.mark.parametrize("fault", ["work", "apart"])
def test_the_late_rank_is_named_first(fault: str, marks: str, tmp_path: Path) -> None:
    """Without spans, with steps only, with decorators only; also where no phase has the delay."""
    report, printed = explained(tmp_path / "t", fault, marks)
    first = report.findings[0]
    covered = fault == "work" and marks == "phases"
    assert (first.kind, first.ranks) == ("straggler", (1,))
    assert first.phase == ("backprop" if covered else "uninstrumented")
    assert report.verdict.headline.startswith("STRAGGLER rank 1")
    assert report.verdict.headline in printed
    assert covered or "No span covers it" in first.sentence
    assert report.ledger
    assert report.ledger.awaited_rank == 1
    assert not any(finding.kind == "update_gap" for finding in report.findings)


@pytest.mark.parametrize("marks", MARKS)
def test_no_rank_is_accused_without_a_fault(marks: str, tmp_path: Path) -> None:
    """The same program without a fault has none."""
    report, _ = explained(tmp_path / "t", "none", marks)
    assert [f.sentence for f in report.findings if f.kind == "straggler"] == []
    assert report.summary.steps >= 55
