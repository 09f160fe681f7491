"""First runs of programs whose ranks send each other messages: steps and culprits without any mark."""

from pathlib import Path

import pytest
from support.launch.mpi import launch
from support.launch.recording import recorded
from support.launch.torchrun import torchrun_command
from support.turns import select_turn

import tracelens as tl
from tracelens.accounting.core_waits import MIN_WAIT_FOR_CORES_IF_BUSY, measure_core_wait_of_run
from tracelens.accounting.stages import find_stages

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

PROGRAMS = Path(__file__).parents[1] / "support" / "launch" / "programs"
MPI, PIPELINE = PROGRAMS / "unmarked_mpi.py", PROGRAMS / "pipeline_torch.py"
RANKS = 3
STEPS = {
    "borders": 119,
    "ring": 79,
    "server": 79,
    "windows": 79,
    "exposed": 79,
    "scattered": 59,
    "polled": 119,
    "groups": 119,
}  # what was done before the second is start-up
# Each run tries one pattern of each line: messages of peers, of a server or of groups, and windows.
PATTERNS = (
    *select_turn(("borders", "ring", "scattered", "polled")),
    *select_turn(("server", "groups")),
    *select_turn(("windows", "exposed")),
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_who_makes_the_others_wait_is_named(pattern: str, tmp_path: Path) -> None:
    """Also with a few collectives among the messages, or with one-sided windows only."""
    fault, culprit = ("apply", 0) if pattern == "server" else ("work", 2)
    report = tl.analyze(recorded(tmp_path / "t", [*launch(MPI, RANKS), pattern, fault]))
    finding = report.findings[0]
    assert (finding.kind, finding.ranks, finding.phase) == (
        "straggler",
        (culprit,),
        "uninstrumented",
    )
    assert report.verdict.headline.startswith(f"STRAGGLER rank {culprit}")
    assert report.summary.steps == STEPS[pattern]
    if pattern in ("ring", "scattered", "borders"):  # it works twice as long: half of the job
        assert finding.saving == pytest.approx(0.45, abs=0.12)


@pytest.mark.alone
@pytest.mark.parametrize("fault", ["none", "work"])
def test_a_slow_worker_of_a_server_that_nobody_waits_for(fault: str, tmp_path: Path) -> None:
    """Others make the steps that it does not: rank 0 is no peer, and it is no fault of it to wait."""
    report = tl.analyze(recorded(tmp_path / "t", [*launch(MPI, RANKS), "queue", fault]))
    faults = [finding for finding in report.findings if finding.category == "fault"]
    assert (report.verdict.state == "fault") == (fault == "work")
    assert [(found_fault.kind, found_fault.ranks) for found_fault in faults] == (
        [("straggler", (2,))] if fault == "work" else []
    )
    for found_fault in faults:
        assert "the others make the steps that it does not" in found_fault.sentence
        assert found_fault.saving == pytest.approx(
            0.25, abs=0.05
        )  # 1 / 15 + 1 / 30 of 2 / 15 steps a ms


@pytest.mark.alone
@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_rank_is_accused_without_a_fault(pattern: str, tmp_path: Path) -> None:
    trace = recorded(tmp_path / "t", [*launch(MPI, RANKS), pattern, "none"])
    report = tl.analyze(trace)
    assert [f.sentence for f in report.findings if f.category == "fault"] == []
    assert report.summary.steps == STEPS[pattern]
    source = {
        "windows": "collectives that they repeat (barrier)",
        "scattered": "collectives that they repeat (all_gather)",
        "polled": "collectives that they repeat (allreduce of 390.6 KiB)",
        "groups": "collectives of groups that they repeat",
    }.get(pattern, "messages that they")
    assert f"taken from the {source}" in trace.notes[0].sentence


def test_a_stage_that_is_slow_for_a_while_is_a_straggler(tmp_path: Path) -> None:
    """It has no peers; its other steps say what is usual."""
    pytest.importorskip("torch")
    report = tl.analyze(recorded(tmp_path / "t", torchrun_command(PIPELINE, RANKS, ["stall"])))
    first = report.findings[0]
    assert (first.kind, first.ranks, first.phase) == ("straggler", (1,), "uninstrumented")


@pytest.mark.parametrize("fault", [pytest.param("none", marks=pytest.mark.alone), "uneven"])
def test_stages_are_no_stragglers_by_what_they_are_given(fault: str, tmp_path: Path) -> None:
    """A longer one is stage imbalance; what an even pipeline waits is its bubble.

    No span covers what stages compute, only that backprop is seen.
    """
    pytest.importorskip("torch")
    trace = recorded(tmp_path / "t", torchrun_command(PIPELINE, RANKS, [fault]))
    stages = find_stages(trace)
    assert stages is not None
    assert stages.stage_of_column.tolist() == [0, 1, 2]
    report = tl.analyze(trace)
    assert [f.sentence for f in report.findings if f.category == "fault"] == []
    named = [f.ranks for f in report.findings if f.kind == "stage_imbalance"]
    assert named == ([(1,)] if fault == "uneven" else [])
    assert report.ledger
    assert any(loss.cause == "bubble" and loss.share > 0.05 for loss in report.ledger.losses)
    waited = measure_core_wait_of_run(trace) or 0.0
    assert (
        waited >= MIN_WAIT_FOR_CORES_IF_BUSY
        or ("stage imbalance" if fault == "uneven" else "uninstrumented") in report.verdict.headline
    )
