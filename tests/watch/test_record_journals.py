"""`tracelens record` writes down the life of its command: start, end, and ends of its processes."""

import signal
import sys
from pathlib import Path
from typing import Final

import pytest
from support.launch.record import run_record

from tracelens.schema.life import Ended, Exited, Launched, read_journals

pytestmark = pytest.mark.end_to_end

# It ends as its argument says, when `record` has noticed it.
PROGRAM: Final = """
import glob, os, sys, time
import tracelens as tl
with tl.step(0):
    pass
while not glob.glob(os.environ["TRACELENS_DIR"] + "/life-*"):
    time.sleep(0.01)
code = int(sys.argv[1])
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("code", "code_of_command"),
    [(7, 7), pytest.param(-signal.SIGKILL, 137, marks=pytest.mark.slow)],
)
def test_the_end_of_a_process(code: int, code_of_command: int, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    done = run_record("--no-verdict", "--out", folder, "--", sys.executable, "-c", PROGRAM, code)
    assert done.returncode == code_of_command
    launched, end, ended = read_journals(folder)
    assert isinstance(launched, Launched)
    assert isinstance(end, Exited)
    assert isinstance(ended, Ended)
    assert (end.rank, end.pid, end.code) == (0, launched.pid, code)
    assert ended.code == code_of_command
    assert launched.at_ns < end.at_ns <= ended.at_ns


def test_nothing_is_written_where_nothing_is_recorded(tmp_path: Path) -> None:
    done = run_record("--out", tmp_path / "t", "--", sys.executable, "-c", "pass")
    assert done.returncode == 0
    assert not (tmp_path / "t").exists()


@pytest.mark.slow
def test_a_watch_beside_it_changes_nothing(tmp_path: Path) -> None:
    """It reports on standard error, and what is written to standard output stays the command's."""
    command = ("--", sys.executable, "-c", PROGRAM, "3")
    done = run_record("--watch", "--no-verdict", "--out", tmp_path / "t", *command)
    assert (done.returncode, done.stdout) == (3, "")
    assert "rank 0 of 1 records" in done.stderr
    assert "ended with exit code 3" in done.stderr
