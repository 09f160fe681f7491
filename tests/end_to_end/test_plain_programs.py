"""A first run of a program as it is: who makes the others wait is named, wherever no span covers it."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.launch.disturb import Disturber, stopped_long
from support.launch.mpi import launch
from support.launch.patience import PATIENCE_S
from support.launch.recording import run_command
from support.launch.torchrun import torchrun_command
from support.turns import select_turn

import tracelens as tl

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

PROGRAMS = Path(__file__).parents[1] / "support" / "launch" / "programs"
SCRIPT, DDP = PROGRAMS / "plain_mpi.py", PROGRAMS / "plain_ddp.py"
SPAWNED = PROGRAMS / "spawned_ddp.py"
RANKS = 3
STEPS_OF_STOPS = 1500  # half a minute: less is over before it was stopped often
MARKS = select_turn(("none", "step", "phases"))


def record_and_analyze(
    folder: Path, command: Sequence[str], *options: str
) -> tuple[tl.Report, str]:
    """Record a run, and return its report and what `record` printed."""
    tracelens = str(Path(sys.executable).with_name("tracelens"))
    done = run_command(
        [tracelens, "record", *options, "--out", str(folder), "--", *command],
        {"OMP_NUM_THREADS": "1"},
    )
    return tl.analyze(tl.open(folder)), done.stderr


@pytest.mark.parametrize("marks", MARKS)
@pytest.mark.parametrize("fault", ["work", "apart"])
def test_the_late_rank_is_named_first(fault: str, marks: str, tmp_path: Path) -> None:
    """Without spans, with steps only, with decorators only; also where no phase has the delay."""
    report, printed = record_and_analyze(tmp_path / "t", [*launch(SCRIPT, RANKS), fault, marks])
    first_finding = report.findings[0]
    covered = fault == "work" and marks == "phases"
    assert (first_finding.kind, first_finding.ranks) == ("straggler", (1,))
    assert first_finding.phase == ("backprop" if covered else "uninstrumented")
    assert report.verdict.headline.startswith("STRAGGLER rank 1")
    assert report.verdict.headline in printed
    assert covered or "No span covers it" in first_finding.sentence
    assert report.ledger
    assert report.ledger.awaited_rank == 1
    assert not any(finding.kind == "update_gap" for finding in report.findings)


@pytest.mark.alone
@pytest.mark.parametrize("marks", MARKS)
def test_no_rank_is_accused_without_a_fault(marks: str, tmp_path: Path) -> None:
    """The same program without a fault has none."""
    report, _ = record_and_analyze(tmp_path / "t", [*launch(SCRIPT, RANKS), "none", marks])
    assert [f.sentence for f in report.findings if f.kind == "straggler"] == []
    assert report.summary.steps >= 55


@pytest.mark.alone
def test_a_rank_that_is_stopped_from_outside(tmp_path: Path) -> None:
    """By SIGSTOP, for 0.6 s of every 3 s; the program is as it was.

    A stop in the midst of a call is part of the call for all ranks; enough of them are in its own code.
    """
    command = [*launch(SCRIPT, RANKS), "none", "none", str(STEPS_OF_STOPS)]
    with Disturber(tmp_path / "t", 1, stopped_long, 0.5, PATIENCE_S).at_work():
        report, _ = record_and_analyze(tmp_path / "t", command)
    first = report.findings[0]
    assert (first.kind, first.ranks, first.phase) == ("straggler", (1,), "uninstrumented")
    assert report.verdict.headline.startswith("STRAGGLER rank 1")


def test_a_ddp_training_whose_loader_is_slow_on_a_rank(tmp_path: Path) -> None:
    """With its stacks sampled the calls are named, from where ranks differ to what holds the delay."""
    pytest.importorskip("torch")
    command = torchrun_command(DDP, RANKS, ["loader"])
    report, printed = record_and_analyze(tmp_path / "t", command, "--sample")
    finding = report.findings[0]
    assert (finding.kind, finding.ranks, finding.phase) == ("straggler", (1,), "data")
    assert report.verdict.headline.startswith("STRAGGLER rank 1, data loading")
    assert report.verdict.headline in printed
    assert "… > decode_image > resample_bicubic > delay (plain_ddp.py:" in finding.sentence
    path = finding.evidence["samples"]["path"]
    assert finding.function == path[0]
    assert path[0].startswith("_BaseDataLoaderIter.__next__ (torch/")
    assert any("<module> (" in frame for frame in finding.evidence["samples"]["stack"])
    assert not any("<module> (" in frame for frame in path)


@pytest.mark.parametrize(
    ("what", "place"),
    select_turn(
        [
            ("log", "between optimizer update and forward"),
            ("inspect", "between forward and backprop"),
        ]
    ),
)
def test_what_a_rank_does_beside_a_training_in_every_step(
    what: str, place: str, tmp_path: Path
) -> None:
    """Of processes that `torch.multiprocessing.spawn` starts: 30 ms, around which there is no span."""
    pytest.importorskip("torch")
    report, printed = record_and_analyze(tmp_path / "t", [sys.executable, str(SPAWNED), what])
    first = report.findings[0]
    assert (first.kind, first.ranks, first.phase) == ("straggler", (0,), "uninstrumented")
    assert f"No span covers it, {place}" in first.sentence
    assert report.verdict.headline in printed


def test_evaluations_of_one_rank_are_no_jitter(tmp_path: Path) -> None:
    """Half a second four times: a stall of rank 0, or not explained, but never called healthy."""
    pytest.importorskip("torch")
    report, _ = record_and_analyze(
        tmp_path / "t", [sys.executable, str(SPAWNED), "evaluate"], "--sample"
    )
    verdict = report.verdict
    assert verdict.state in ("fault", "inconclusive")
    assert "rank 0" in f"{verdict.headline} {verdict.why}"
    assert "evaluate" in f"{verdict.why} {verdict.action}"
    assert report.ledger
    assert report.ledger.awaited_rank == 0


@pytest.mark.alone
def test_a_spawned_training_without_a_fault_accuses_nobody(tmp_path: Path) -> None:
    """The same program without the delay."""
    pytest.importorskip("torch")
    report, _ = record_and_analyze(tmp_path / "t", [sys.executable, str(SPAWNED), "nothing"])
    assert [f.sentence for f in report.findings if f.kind == "straggler"] == []


@pytest.mark.alone
def test_the_readme_program_gives_the_verdict_it_shows(tmp_path: Path) -> None:
    """README begins with it, and with what is said of it."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    script = tmp_path / "train.py"
    script.write_text(readme.partition("```python\n")[2].partition("```")[0])
    report, _ = record_and_analyze(tmp_path / "t", torchrun_command(script, 2))
    assert report.verdict.headline.startswith("STRAGGLER rank 1, uninstrumented code")
    assert "Verdict  STRAGGLER rank 1, uninstrumented code" in readme
