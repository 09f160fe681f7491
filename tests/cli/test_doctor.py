"""`tracelens doctor` tries to record, names each problem, and ends with 1 if it found one."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.launch.recording import run_command

from tracelens.cli import checks, main

Output = pytest.CaptureFixture[str]
pytestmark = pytest.mark.end_to_end


def run_doctor(folder: Path, capsys: Output) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--out", str(folder), "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    return code, {check["name"]: check for check in found}


def test_a_machine_that_can_record(tmp_path: Path, capsys: Output) -> None:
    """All is tried for real, below the folder that was named, and nothing is left there."""
    code, checks = run_doctor(tmp_path / "traces" / "today", capsys)
    assert code == 0
    assert checks["trial"]["state"] == "ok"
    assert "1000 spans" in checks["trial"]["found"]
    assert checks["PyTorch"]["found"] == "not installed" or "2." in checks["PyTorch"]["found"]
    assert list(tmp_path.iterdir()) == []


def test_the_recorder_in_python_is_noted(tmp_path: Path) -> None:
    """It works, at a higher cost, so it is no problem."""
    done = run_command(
        [sys.executable, "-m", "tracelens", "doctor", "--out", str(tmp_path)],
        {"TRACELENS_NATIVE": "0"},
    )
    (line,) = (line for line in done.stdout.splitlines() if " recorder " in line)
    assert line.startswith("note")
    assert "TRACELENS_NATIVE=0" in done.stdout
    assert done.stdout.rstrip().endswith("ready to record")


def test_a_folder_that_cannot_be_written(capsys: Output) -> None:
    """Nobody can make a folder there, not even the administrator."""
    code, checks = run_doctor(Path("/proc/nowhere"), capsys)
    assert code == 1
    assert checks["trial"]["state"] == "problem"
    assert "/proc" in checks["trial"]["found"]


def test_spans_that_are_missing_are_a_problem(tmp_path: Path) -> None:
    """A recording that is short of spans is told with what its process said."""
    program = checks.TRIAL_PROGRAM.replace("range(1000)", "range(7)")
    check = checks.check_trial(tmp_path, program)
    assert (check.state, check.found) == ("problem", "7 of 1000 spans were read back")


def test_a_program_that_does_not_record_is_a_problem(tmp_path: Path) -> None:
    check = checks.check_trial(tmp_path, "raise SystemExit('no recorder here')")
    assert check.state == "problem"
    assert "no recorder here" in check.advice
