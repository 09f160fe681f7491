"""The main job: `tracelens demo` records a training with a slow rank, and names that rank."""

import sys
from pathlib import Path

import pytest
from support.launch.recording import run_command


@pytest.mark.alone
@pytest.mark.end_to_end
@pytest.mark.slow
def test_demo_names_the_slow_rank(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tracelens",
        "demo",
        "--no-serve",
        "--out",
        str(tmp_path / "t"),
    ]
    done = run_command(command)
    planted = "rank 2 gets 40 ms of extra work in backprop"
    assert planted in done.stdout
    assert "1. Straggler" in done.stdout
    assert "Rank 2 is a straggler in backprop" in " ".join(done.stdout.split())
