"""A signal sent to `tracelens record` reaches the command; what it does then is what counts."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.launch.patience import PATIENCE_S
from support.launch.record import record_command
from support.launch.recording import clean_environment, read_one, run_command
from support.tiers import mark_slow

pytestmark = pytest.mark.end_to_end

OBEDIENT = """
import signal, sys, time
import tracelens as tl
number = int(sys.argv[1])
signal.signal(number, lambda *_: sys.exit(40 + number))
with tl.span("work"):
    print("ready", flush=True)
    while True:
        time.sleep(0.01)  # pause() would miss a signal that comes just before it
"""
SIGNALS = ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def _record_and_signal(number: int, command: list[object]) -> tuple[int, str]:
    """Start, send the signal to the recorder once the command is ready, and wait."""
    with subprocess.Popen(
        record_command(*command),
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # as in the background: there is no terminal that tells the child
    ) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "ready\n"
            started.send_signal(number)
            _, errors = started.communicate(timeout=PATIENCE_S)
        finally:
            with suppress(
                ProcessLookupError
            ):  # a recorder that dies must not leave the command here
                os.killpg(started.pid, signal.SIGKILL)
    return started.returncode, errors


@pytest.fixture
def heeded(name: str) -> Iterator[int]:
    """Have a signal heeded: tests that are started in the background may inherit that it is not."""
    number = signal.Signals[name]
    handler = signal.getsignal(number)
    if handler == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
    yield int(number)
    signal.signal(number, handler)


@pytest.mark.parametrize("name", mark_slow(SIGNALS, ("SIGTERM", "SIGUSR1")))
def test_the_command_gets_the_signal(heeded: int, tmp_path: Path) -> None:
    """It ends by itself, and its recording is complete."""
    number = heeded
    command = [
        "--no-verdict",
        "--out",
        tmp_path / "t",
        "--",
        sys.executable,
        "-c",
        OBEDIENT,
        number,
    ]
    code, errors = _record_and_signal(number, command)
    assert code == 40 + number
    assert "recorded 1 process" in errors
    assert read_one(tmp_path / "t").one("work")["status"] == "exception"


def test_a_command_killed_by_a_signal_ends_as_in_a_shell(tmp_path: Path) -> None:
    """Exit code 128 + the signal; its last span is recorded as open."""
    helpless = OBEDIENT.replace("signal.signal(number", "(lambda *_: None)(number")
    command = ["--no-verdict", "--out", tmp_path / "t", "--", sys.executable, "-c", helpless, 0]
    code, errors = _record_and_signal(signal.SIGTERM, command)
    assert code == 128 + signal.SIGTERM
    assert "1 process left behind" in errors
    recorded = read_one(tmp_path / "t")
    assert recorded.one("work")["status"] == "open"
    assert recorded.path.suffix == ".arrow"


def test_what_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """Under nohup neither the recorder nor the command ends when the terminal goes."""
    ask = "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    command = record_command("--out", tmp_path / "t", "--", sys.executable, "-c", ask)
    done = run_command([sys.executable, "-c", _NOHUP, *command])
    assert done.stdout == "True\n"


_NOHUP = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])
"""
