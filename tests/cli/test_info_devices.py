"""`tracelens info` says whether devices were timed, and how well their clocks are known."""

import json
from pathlib import Path

import pytest
from support.runs.scenarios import DEVICES, HEALTHY

from tracelens.cli import main
from tracelens.simulator.synthetic import write


def test_devices_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In words and, for programs, device by device."""
    write(DEVICES, tmp_path)
    assert main(["info", str(tmp_path)]) == 0
    assert "4 devices timed, clock uncertainty" in capsys.readouterr().out
    assert main(["info", str(tmp_path), "--format", "json"]) == 0
    clocks = json.loads(capsys.readouterr().out)["devices"]
    assert [(clock["process"], clock["device"]) for clock in clocks] == [(r, 0) for r in range(4)]
    assert all(0 < clock["uncertainty_ns"] < 50_000 for clock in clocks)


def test_without_devices_nothing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(HEALTHY, tmp_path)
    assert main(["info", str(tmp_path)]) == 0
    assert "devices timed" not in capsys.readouterr().out
