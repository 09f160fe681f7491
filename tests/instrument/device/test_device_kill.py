"""Device times survive what happens to processes: SIGKILL, and fork."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.launch.patience import PATIENCE_S
from support.launch.recording import clean_environment, read_all, read_one

pytestmark = pytest.mark.end_to_end

TESTS = str(Path(__file__).parents[2])

PROGRAM = """
import os, signal, sys, time
import tracelens as tl
from support.device.simulated_device import SimulatedDevice
from tracelens_instrument.device import timebase

parent = os.getpid()
device = SimulatedDevice(clock=time.monotonic_ns)
def find():
    return device if os.getpid() == parent else None  # as CUDA in a forked child
timebase.find = find
SPAN = tl.span("work", kind="forward", device=True)

def steps(first, last):
    for number in range(first, last):
        with tl.step(number), SPAN:
            device.queue(1000)

def settle():
    until = max(event.at_ns for event in device.events)
    while time.monotonic_ns() <= until:
        pass

tl.start(sys.argv[1])
steps(0, 100)
settle()
steps(100, 101)
"""

KILLED = (
    PROGRAM
    + """
device.queue(10**15)
steps(101, 120)
os.kill(os.getpid(), signal.SIGKILL)
"""
)

FORKED = (
    PROGRAM
    + """
asked = sum(event.asked for event in device.events)
child = os.fork()
if child == 0:
    with tl.step(7), SPAN:
        pass
    tl.stop()
    os._exit(asked != sum(event.asked for event in device.events))
_, status = os.waitpid(child, 0)
assert status == 0, status
steps(101, 105)
settle()
"""
)


def run(program: str, folder: Path) -> int:
    environment = clean_environment()
    environment["PYTHONPATH"] = f"{TESTS}:{environment.get('PYTHONPATH', '')}"
    return subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        env=environment,
        timeout=PATIENCE_S,
        check=False,
    ).returncode


def test_a_kill_loses_no_times_that_were_known(tmp_path: Path) -> None:
    """Known device times are kept; unknown ones are null, and their spans are kept."""
    assert run(KILLED, tmp_path) == -9
    events = read_one(tmp_path).named("work")
    assert [event["step"] for event in events] == list(range(120))
    timed = [event["device_start_ns"] is not None for event in events]
    assert timed[:100] == [True] * 100
    assert timed[101:] == [False] * 19
    assert {event["request"] for event in events} == {None}


def test_a_forked_child_leaves_the_device_alone(tmp_path: Path) -> None:
    """It records host spans of its own; the parent goes on, and loses nothing."""
    assert run(FORKED, tmp_path) == 0
    parts = [part.named("work") for part in read_all(tmp_path)]
    child, parent = sorted(parts, key=len)
    assert [(event["step"], event["device_start_ns"]) for event in child] == [(7, None)]
    assert len(parent) == 105
    assert all(event["device_start_ns"] is not None for event in parent)
