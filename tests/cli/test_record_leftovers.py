"""What killed processes leave is converted at the end, unless somebody may still be writing it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from support.launch.record import run_record
from support.launch.recording import read
from support.runs.segments import PROCESS, Slot, write_folder

from tracelens.schema.host import clock_domain, host_name
from tracelens.schema.side import Process

if TYPE_CHECKING:
    from pathlib import Path

GONE = 2**22 + 1  # above the highest pid that Linux gives
NOTHING = ("--", sys.executable, "-c", "")


def _process(*, pid: int = GONE, host: str = "") -> Process:
    """A process of this machine, unless another is named."""
    domain = "another clock" if host else clock_domain()
    return Process(
        rank=PROCESS.rank,
        world=PROCESS.world,
        pid=pid,
        host=host or host_name(),
        clock_domain=domain,
        incarnation=2**62,
    )


def _leave(folder: Path, process: Process) -> Path:
    folder.mkdir()
    return write_folder(folder, [Slot(1, 2), Slot(3)], process=process, end=False)


def test_of_a_process_that_is_gone(tmp_path: Path) -> None:
    """It becomes a file with the closed span and the open one, and we are told."""
    segments = _leave(tmp_path / "t", _process())
    done = run_record("--out", tmp_path / "t", *NOTHING)
    assert "1 process left behind" in done.stderr
    assert "recorded 1 process with 2 events" in done.stderr
    assert not segments.exists()
    statuses = [event["status"] for event in read(segments.with_suffix(".arrow")).events]
    assert statuses == ["closed", "open"]


def test_of_another_host(tmp_path: Path) -> None:
    """Nobody here knows whether it still grows, so it is left alone."""
    segments = _leave(tmp_path / "t", _process(host="elsewhere"))
    done = run_record("--out", tmp_path / "t", *NOTHING)
    assert done.returncode == 0
    assert segments.is_dir()


def test_of_a_process_that_still_runs(tmp_path: Path) -> None:
    segments = _leave(tmp_path / "t", _process(pid=os.getpid()))
    run_record("--out", tmp_path / "t", *NOTHING)
    assert segments.is_dir()


def test_that_nobody_can_read(tmp_path: Path) -> None:
    """It stays as it is, one sentence says why, and the others are converted."""
    segments = _leave(tmp_path / "t", _process())
    broken = segments.with_name("worker-00009-9.segments")
    broken.mkdir()
    (broken / "side.jsonl").write_text("nonsense\n")
    done = run_record("--out", tmp_path / "t", *NOTHING)
    assert done.returncode == 0
    assert f"{broken.name} stays as it is" in done.stderr
    assert "Traceback" not in done.stderr
    assert broken.is_dir()
    assert not segments.exists()


def test_by_one_of_several_ranks_under_a_launcher(tmp_path: Path) -> None:
    """A folder without a word in it may be one that a rank beside us is making."""
    made = tmp_path / "t" / "worker-00001-1.segments"
    made.mkdir(parents=True)
    done = run_record("--out", tmp_path / "t", *NOTHING, PMI_RANK="1", PMI_SIZE="2")
    assert done.stderr == ""
    assert made.is_dir()
