"""Real runs whose ranks exchange messages: the slow rank is named even if few ranks wait for it."""

import sys
from pathlib import Path

import polars as pl
import pytest
from support.launch.mpi import launch
from support.launch.recording import run_command
from support.turns import select_turn

import tracelens as tl
from tracelens.accounting.phases import run
from tracelens.accounting.stages import find_stages

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

SCRIPT = Path(__file__).parents[1] / "support" / "launch" / "programs" / "neighbours_mpi.py"
RANKS = 4
PATTERNS = select_turn(("halo", "pipeline"))
STEPS, WORK_NS = 60, 20_000_000  # where work overlaps with messages


def record_run(folder: Path, pattern: str, fault: str, ranks: int = RANKS) -> tl.Trace:
    """Record a run, and open it."""
    tracelens = str(Path(sys.executable).with_name("tracelens"))
    command = [*launch(SCRIPT, ranks), pattern, fault]
    run_command([tracelens, "record", "--out", str(folder), "--", *command])
    return tl.open(folder)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_slow_rank_is_named(pattern: str, tmp_path: Path) -> None:
    """Others wait for it down the chain; most of the loss is attributed to it."""
    trace = record_run(tmp_path / "t", pattern, "work")
    report = tl.analyze(trace)
    faults = [finding for finding in report.findings if finding.category == "fault"]
    assert [(finding.kind, finding.ranks) for finding in faults] == [("straggler", (1,))]
    assert report.verdict.headline.startswith("STRAGGLER rank 1")
    assert faults[0].evidence["ranks_waiting"] == RANKS - 1
    assert (
        faults[0].saving or 0.0
    ) > 0.2  # it takes 12 of some 22 ms longer, or more in a pipeline
    assert report.ledger
    assert report.ledger.awaited_rank == 1
    waits = [loss for loss in report.ledger.losses if loss.category == "wait"]
    claimed = sum(loss.share for loss in waits if loss.finding == report.findings.index(faults[0]))
    assert claimed > 0.5 * sum(loss.share for loss in waits)


@pytest.mark.alone
@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_rank_is_accused_without_a_fault(pattern: str, tmp_path: Path) -> None:
    """The same program without a fault; its stages are distinguished."""
    trace = record_run(tmp_path / "t", pattern, "none")
    report = tl.analyze(trace)
    assert [finding.sentence for finding in report.findings if finding.category == "fault"] == []
    stages = find_stages(trace)
    assert (None if stages is None else stages.stage_of_column.tolist()) == (
        None if pattern == "halo" else [0, 1, 0, 1]
    )


@pytest.mark.parametrize("fault", [pytest.param("none", marks=pytest.mark.alone), "work"])
def test_work_while_messages_are_in_flight_is_work(fault: str, tmp_path: Path) -> None:
    """Only the waits are communication, so who works longest is named, and nobody without a fault."""
    trace = record_run(tmp_path / "t", "overlap", fault, ranks=3)
    named = [f.ranks for f in tl.analyze(trace).findings if f.kind == "straggler"]
    assert named == ([(1,)] if fault == "work" else [])
    mine = (pl.col("rank") == 1) & (pl.col("category") == "uninstrumented")
    slept_ns = STEPS * WORK_NS * (2.5 if fault == "work" else 1)
    assert run(trace).times.filter(mine)["ns"].sum() > 0.95 * slept_ns
