"""What killed processes leave is converted at the end, unless somebody may still be writing it."""

import os
import sys
from pathlib import Path

import pytest
from support.launch.record import run_record
from support.launch.recording import read
from support.runs.segments import PROCESS, Slot, write_folder

from tracelens.schema.host import clock_domain, host_name, process_started_ns
from tracelens.schema.side import Process

GONE = 2**22 + 1  # above the highest pid that Linux gives
NOTHING = ("--", sys.executable, "-c", "")


def _leave(folder: Path, rank: int, *, pid: int = GONE, host: str = "") -> Path:
    """Write the segments of a process of this machine, unless another one is named."""
    process = Process(
        rank=rank,
        world=PROCESS.world,
        pid=pid,
        host=host or host_name(),
        clock_domain="another clock" if host else clock_domain(),
        incarnation=process_started_ns(os.getpid()) or 0,  # before the command began
    )
    return write_folder(folder, [Slot(1, 2), Slot(3)], process=process, end=False)


@pytest.mark.slow
def test_segments_of_dead_processes_are_converted(tmp_path: Path) -> None:
    """Only what a process of this machine left that is gone becomes a file, and we are told.

    Nobody here knows whether what another host writes still grows. What nobody can read stays as it
    is, and one sentence says why.
    """
    folder = tmp_path / "t"
    dead_folder = _leave(folder, 0)
    elsewhere = _leave(folder, 1, host="elsewhere")
    running = _leave(folder, 2, pid=os.getpid())
    broken = folder / "worker-00009-9.segments"
    broken.mkdir()
    (broken / "side.jsonl").write_text("nonsense\n")
    done = run_record("--no-verdict", "--out", folder, *NOTHING)
    assert done.returncode == 0
    assert "2 processes left behind" in done.stderr
    assert "recorded 1 process with 2 events" in done.stderr
    assert f"{broken.name} stays as it is" in done.stderr
    assert "Traceback" not in done.stderr
    assert not dead_folder.exists()
    statuses = [event["status"] for event in read(dead_folder.with_suffix(".arrow")).events]
    assert statuses == ["closed", "open"]
    assert elsewhere.is_dir()
    assert running.is_dir()
    assert broken.is_dir()


def test_a_folder_that_another_rank_is_creating_is_left(tmp_path: Path) -> None:
    """A folder without a note may be one that another rank is creating."""
    segments_folder = tmp_path / "t" / "worker-00001-1.segments"
    segments_folder.mkdir(parents=True)
    done = run_record("--out", tmp_path / "t", *NOTHING, PMI_RANK="1", PMI_SIZE="2")
    assert done.stderr == ""
    assert segments_folder.is_dir()
