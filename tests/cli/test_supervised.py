"""A verb that reads what may be a stranger's runs in a child process: signals, terminals, exit codes."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from support.launch.patience import PATIENCE_S, wait_until
from support.runs.damage import write_run

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(sys.platform != "linux", reason="other systems do without a supervisor"),
]

# A reader that says that it reads and then waits, where a test wants to send signals.
SITE: Final = """
import os, signal, sys
from tracelens.schema import gate

real = gate.open_regular

def opened(path, *kind):
    if "READS" in os.environ:
        if "HANDLED" in os.environ:
            signal.signal(signal.SIGTERM, lambda *_: os.write(2, b"got it\\n"))
        os.write(2, b"reads\\n")
        while True:
            signal.pause()
    return real(path, *kind)

gate.open_regular = opened
"""


def search_path(folder: Path) -> str:
    """Return the search path of this process, with a folder before it."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Any]:
    """Yield a function that starts `info` in a process group of its own, and waits until it reads."""
    (tmp_path / "sitecustomize.py").write_text(SITE)
    write_run(tmp_path / "trace")
    previous_handler = signal.signal(
        signal.SIGHUP, signal.SIG_DFL
    )  # nohup, around the tests, ignores it
    started: list[subprocess.Popen[str]] = []

    def start(**more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tracelens", "info", "--contained", tmp_path / "trace"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": search_path(tmp_path), "READS": "1"} | more,
            process_group=0,
        )
        started.append(process)
        assert process.stderr is not None
        assert process.stderr.readline() == "reads\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    signal.signal(signal.SIGHUP, previous_handler)


def child_of(pid: int) -> int:
    (found,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found)


def state_of(pid: int) -> str:
    """Return a letter of ps; a process that is gone, or is not waited for by another, has Z."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR2"])
def test_a_signal_ends_both(run: Any, name: str) -> None:
    """Whoever waits sees the command ended by that signal, and nothing is left."""
    process = run()
    child = child_of(process.pid)
    process.send_signal(signal.Signals[name])
    assert process.wait(PATIENCE_S) == -signal.Signals[name]
    wait_until(lambda: state_of(child) == "Z")


def test_ctrl_c_ends_with_the_exit_code_of_an_interrupt(run: Any) -> None:
    """The exit code is that of an interrupted command, if one process gets the signal or both do."""
    for send in (os.kill, os.killpg):
        process = run()
        send(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130


def test_a_killed_command_ends_its_child(run: Any) -> None:
    """SIGKILL of the command, as by a time limit, ends what it started."""
    process = run()
    child = child_of(process.pid)
    process.kill()
    process.wait(PATIENCE_S)
    wait_until(lambda: state_of(child) == "Z")


def test_a_signal_that_the_verb_handles(run: Any) -> None:
    """SIGTERM to the command alone reaches the child, which may go on."""
    process = run(HANDLED="1")
    process.terminate()
    assert process.stderr.readline() == "got it\n"
    os.kill(child_of(process.pid), signal.SIGHUP)
    assert process.wait(PATIENCE_S) == -signal.SIGHUP


def test_a_stopped_command_stops_and_continues_its_child(run: Any) -> None:
    """Ctrl-Z stops both; `fg` goes on."""
    process = run()
    child = child_of(process.pid)
    os.killpg(process.pid, signal.SIGTSTP)
    wait_until(lambda: state_of(process.pid) == state_of(child) == "T")
    os.killpg(process.pid, signal.SIGCONT)
    wait_until(lambda: "T" not in {state_of(process.pid), state_of(child)})
    process.terminate()
    assert process.wait(PATIENCE_S) == -signal.SIGTERM


def test_ctrl_c_in_a_terminal_ends_the_command(tmp_path: Path) -> None:
    """Ctrl-C that is typed ends the command; what it prints is as wide as ever."""
    (tmp_path / "sitecustomize.py").write_text(SITE)
    write_run(tmp_path / "trace")
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"PYTHONPATH": search_path(tmp_path), "READS": "1"}
        command = [
            sys.executable,
            "-m",
            "tracelens",
            "info",
            "--contained",
            str(tmp_path / "trace"),
        ]
        os.execv(sys.executable, command)  # noqa: S606 - our own command
    with closing(os.fdopen(terminal, "r+b", buffering=0)) as typed:
        seen = b""
        while b"reads" not in seen:
            seen += typed.read(1024) or b""
        typed.write(b"\x03")
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130


AT_WORK: Final = """
import atexit, sys, threading, time
import numpy as np
from tracelens import cli, supervisor

class Lasting:
    def __del__(self, sleep=time.sleep): sleep(0.3)

lasting = Lasting()  # the interpreter takes a while to end

def verb():
    numbers = np.arange(300_000) % 1000
    def work():
        while True: np.unique(numbers)
    def finish():
        time.sleep(0.6)
        print("finished")
    threading.Thread(target=work, daemon=True).start()
    threading.Thread(target=finish).start()
    atexit.register(print, "at exit")
    time.sleep(0.3)
    if sys.argv[1:] == ["closed"]: sys.stderr.close()
    return 5

cli.parse = lambda words: words
cli.run = lambda _arguments: verb()
sys.exit(supervisor.main())
"""


@pytest.mark.parametrize("stderr", ["open", "closed"])
def test_threads_at_work_do_no_harm_when_a_verb_ends(stderr: str) -> None:
    """Daemon threads are left, as by a server that makes an index; others are waited for."""
    done = subprocess.run(
        [sys.executable, "-c", AT_WORK, stderr],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (5, "finished\nat exit\n", "")


@pytest.mark.parametrize("verb", ["simulate --help", "record --no-verdict -- true", "info trace"])
def test_trusted_input_is_read_in_one_process(verb: str, tmp_path: Path) -> None:
    """Verbs that start programs, read nothing, or read the user's recording run in one process."""
    write_run(tmp_path / "trace")
    program = "import os; os.fork = None; from tracelens.supervisor import main; main()"
    command = [sys.executable, "-c", program, *verb.split()]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["events.csv", "trace"])
def test_foreign_input_is_read_in_a_child(name: str, tmp_path: Path) -> None:
    """What another program wrote is read in a child; and what belongs to another user."""
    write_run(tmp_path / "trace")
    (tmp_path / "events.csv").write_text("rank,start_ns,end_ns\n0,1,2\n")
    program = (
        "import os; os.fork, os.geteuid = None, lambda: -1; from tracelens.supervisor import main"
    )
    command = [sys.executable, "-c", f"{program}; main()", "info", name]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert "TypeError" in done.stderr
