"""How a process ended is known although its parent has collected it."""

import os
import signal
import subprocess
import sys
import time
from typing import Final

import pytest

from tracelens.schema.host import host_name
from tracelens.schema.side import Process
from tracelens.watch.exits import ExitWatch
from tracelens.watch.processes import find_children, is_descendant, read_state

SLEEP: Final = [sys.executable, "-c", "import sys; sys.exit(int(sys.stdin.readline()))"]


def start() -> tuple[subprocess.Popen[str], Process]:
    started = subprocess.Popen(SLEEP, stdin=subprocess.PIPE, text=True)
    process = Process(rank=3, host=host_name(), pid=started.pid, incarnation=time.time_ns())
    return started, process


@pytest.mark.parametrize("code", [0, 7, -signal.SIGKILL])
def test_exit_code_or_signal(code: int) -> None:
    exits = ExitWatch()
    started, process = start()
    exits.add(process)
    assert exits.wait(0) == ([], False)
    if code < 0:
        started.send_signal(-code)
    started.communicate(f"{code}\n")
    ((entry,), _) = exits.wait(60)
    assert (entry.rank, entry.pid, entry.code) == (3, started.pid, code)
    assert not entry.is_out_of_memory
    assert exits.watched == []
    exits.close()


def test_another_process_ends_a_wait() -> None:
    exits = ExitWatch()
    started, _ = start()
    assert exits.add_other(started.pid)
    started.communicate("0\n")
    assert exits.wait(60) == ([], True)
    exits.close()


def test_a_process_with_a_number_that_was_used_again_has_ended() -> None:
    """This process began before that one recorded."""
    exits = ExitWatch()
    exits.add(Process(pid=os.getpid(), incarnation=1))
    ((entry,), _) = exits.wait(0)
    assert (entry.pid, entry.code) == (os.getpid(), None)


def test_states_of_processes() -> None:
    started, _ = start()
    assert is_descendant(started.pid, os.getpid())
    assert not is_descendant(os.getppid(), os.getpid())
    started.send_signal(signal.SIGSTOP)
    while read_state(started.pid) != "stopped":
        time.sleep(0.01)
    assert find_children(os.getpid())[started.pid][1] == "stopped"
    started.kill()
    started.communicate()
    assert read_state(started.pid) == "gone"
