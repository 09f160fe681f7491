"""`tracelens record` writes down the life of its command: start, end, and ends of its processes."""

import signal
import sys
import time
from pathlib import Path
from typing import Final

import pytest
from support.launch.patience import PATIENCE_S
from support.launch.record import run_record
from support.watch.commanded import commanded

from tracelens import load
from tracelens.accounting.life.ledger import measure_life
from tracelens.schema.life import Ended, Exited, Launched, Signalled, read_journals
from tracelens.watch.watcher import Watcher

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


def test_signal_that_record_gets(tmp_path: Path) -> None:
    """It is passed on, and the journal has it before the end that it brings about."""
    folder = tmp_path / "t"
    program = PROGRAM.replace("code = int", "os.kill(os.getppid(), 15); time.sleep(60)\ncode = int")
    done = run_record("--no-verdict", "--out", folder, "--", sys.executable, "-c", program, 0)
    assert done.returncode == 128 + signal.SIGTERM
    launched, signalled, *_ = read_journals(folder)
    assert isinstance(launched, Launched)
    assert launched.command == Path(sys.executable).name
    assert isinstance(signalled, Signalled)
    assert (signalled.signal, signalled.is_key) == ("SIGTERM", False)
    assert signalled.parent


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


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ('raise ValueError("loss is nan")', "1: ValueError (loss is nan) at end (<string>:"),
        ("sys.exit(3)", "3 at end (<string>:"),
        ('sys.exit("no data")', "1: SystemExit (no data) at end (<string>:"),
    ],
)
def test_a_watch_says_why_a_process_ended(end: str, reason: str, tmp_path: Path) -> None:
    program = PROGRAM.replace("sys.exit(code)", f"def end(): {end}\nend()")
    command = ("--", sys.executable, "-c", program, "0")
    done = run_record("--watch", "--no-verdict", "--out", tmp_path / "t", *command)
    assert f"ended with exit code {reason}" in done.stderr


def test_a_watch_says_after_which_call_a_process_ended(tmp_path: Path) -> None:
    """If the program marks no steps."""
    with commanded(tmp_path, world=2) as process:
        process.tell("[reduce.begin(seq=i, nbytes=8).end() for i in range(99)]")
        watcher = Watcher(tmp_path)
        watcher.look()
        process.process.kill()
        process.process.wait()
    text = "".join(news.sentence for news in [*watcher.look(), *watcher.close()])
    assert "after 99 calls in 'world', the last one allreduce" in text


# A launcher that starts its ranks again; the second time they end before their first event.
RESTARTER: Final = """
import os, subprocess, sys
for attempt in range(2):
    ranks = []
    for rank in range(int(sys.argv[2])):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": sys.argv[2]}
        command = [sys.executable, "-c", sys.argv[1], str(attempt)]
        ranks.append(subprocess.Popen(command, env=environment))
    codes = [rank.wait() for rank in ranks]
sys.exit(max(codes))
"""
RESTARTED: Final = """
import os, subprocess, sys, time
import tracelens as tl
subprocess.run([sys.executable, "-c", "raise SystemExit(1)"])  # a helper, which is no rank
time.sleep(2)
if sys.argv[1] == "1":
    os._exit(5)
with tl.step(0):
    time.sleep(2)
os._exit(3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_that_end_before_their_first_event_are_journaled(world: int, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    command = (sys.executable, "-c", RESTARTER, RESTARTED, world)
    done = run_record("--watch", "--no-verdict", "--out", folder, "--", *command)
    exits = [entry for entry in read_journals(folder) if isinstance(entry, Exited)]
    recorded = sorted((entry.rank, entry.code) for entry in exits if entry.has_recorded)
    unrecorded = sorted((entry.rank, entry.code) for entry in exits if not entry.has_recorded)
    assert recorded == [(rank, 3) for rank in range(world)]
    assert unrecorded == [(rank, 5) for rank in range(world)]
    assert "ended with exit code 5 before it recorded anything" in done.stderr
    life = measure_life(load.open(folder))
    assert life is not None
    assert life.attempts["world"].to_list() == [world, world]
    assert "before anything was recorded: exit code 5" in life.attempts["failure"][1]


# A launcher that is killed as soon as its ranks record; they go on until they are told to end.
LAUNCHER: Final = """
import glob, os, signal, subprocess, sys, time
for rank in range(2):
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}
    command = [sys.executable, "-c", sys.argv[1], sys.argv[2]]
    subprocess.Popen(command, env=environment, stdout=-3, stderr=-3)  # -3 is DEVNULL
while len(glob.glob(os.environ["TRACELENS_DIR"] + "/*.segments/*")) < 4:
    time.sleep(0.01)
time.sleep(1)
os.kill(os.getpid(), signal.SIGKILL)
"""
RANK: Final = """
import os, sys, time
import tracelens as tl
step = 0
while not os.path.exists(sys.argv[1]) and step < 3000:
    with tl.step(step):
        time.sleep(0.02)
    step += 1
"""


@pytest.mark.slow
def test_ranks_outlive_their_launcher(tmp_path: Path) -> None:
    """`record` names what killed the launcher and where to look, and a watch goes on to the end."""
    folder, stop = tmp_path / "t", tmp_path / "stop"
    command = ("--", sys.executable, "-c", LAUNCHER, RANK, stop)
    done = run_record("--out", folder, *command)
    try:
        assert done.returncode == 128 + signal.SIGKILL
        (sentence,) = [line for line in done.stderr.splitlines() if "tracelens:" in line]
        assert "was killed by SIGKILL; 2 ranks go on recording: tracelens watch" in sentence
        ended = read_journals(folder)[-1]
        assert isinstance(ended, Ended)
        assert ended.code == 128 + signal.SIGKILL
        watcher = Watcher(folder)
        assert not watcher.is_over
        watcher.look()
        assert not watcher.is_over
    finally:
        stop.touch()
    end_s = time.monotonic() + PATIENCE_S
    while not watcher.is_over and time.monotonic() < end_s:
        watcher.look()
        time.sleep(0.1)
    watcher.close()
    (news,) = watcher.conclude()
    assert "ranks 0 and 1 closed the recording" in news.sentence
    assert news.sentence.endswith("ended with exit code 137 (SIGKILL); exit code 1")
