"""After a fork both go on: the parent as before, the child in files of its own."""

import multiprocessing
import os
import sys
from pathlib import Path

import pytest
from support.launch.recording import read_all, run_child

import tracelens as tl

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(sys.platform != "linux", reason="the recorder works on Linux"),
]

FORK = """
import os, sys
import tracelens as tl
tl.start(sys.argv[1], rank=2, world=4)
span = tl.span("piece")
held = tl.span("held")
token = held.begin()
with held, tl.step(7):
    for number in range(1000):
        with span(nbytes=number):
            pass
    child = os.fork()
    if child == 0:
        for number in range(1000):
            with span(nbytes=-number):
                pass
token.end()
if child:
    os.waitpid(child, 0)
    for number in range(1000, 2000):
        with span(nbytes=number):
            pass
"""


def test_both_sides_of_a_fork_complete(tmp_path: Path) -> None:
    """Nothing of the parent is overwritten or repeated, and spans open at the fork stay its own."""
    run_child(FORK, tmp_path)
    found = read_all(tmp_path)
    (parent,) = [one for one in found if one.side.process.parent_rank_pid is None]
    (child,) = [one for one in found if one is not parent]
    assert child.side.process.parent_rank_pid == parent.side.process.pid
    assert child.side.process.pid != parent.side.process.pid
    assert (child.side.process.rank, child.side.process.world) == (2, 4)
    assert [event["bytes"] for event in parent.named("piece")] == list(range(2000))
    assert [event["status"] for event in parent.named("held")] == ["closed", "closed"]
    assert len(child.events) == 1000
    assert {event["step"] for event in child.events} == {-1}
    assert {event["status"] for event in child.events} == {"closed"}
    assert parent.side.complete
    assert child.side.complete


POOL = """
import multiprocessing, sys
import tracelens as tl
SPAN = tl.span("piece")
def work(number):
    with SPAN(nbytes=number):
        pass
if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    tl.start(sys.argv[1])
    with SPAN:
        pass
    children = [multiprocessing.Process(target=work, args=(n,)) for n in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
"""


LONG = """
import os, sys
import tracelens as tl
tl.start(sys.argv[1])
held, span = tl.span("held"), tl.span("piece")
token = held.begin()
with held:
    for step in range(2):
        with tl.step(step):
            for _ in range(10_000):
                with span:
                    pass
    ended, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.read(ended, 1)  # until the parent has ended its own
        token.end()
        held.__exit__(None, None, None)
        os._exit(0)
token.end()
tl.instant("over")
os.close(end)
os.waitpid(child, 0)
"""


def test_child_ends_nothing_of_its_parent(tmp_path: Path) -> None:
    """Also where the span that was open at the fork is in a segment that was full long before."""
    run_child(LONG, tmp_path)
    (recorded,) = read_all(tmp_path)
    over_ns = recorded.one("over")["start_ns"]
    ends = [event["start_ns"] + event["duration_ns"] for event in recorded.named("held")]
    assert len(ends) == 2
    assert max(ends) <= over_ns


def test_children_of_multiprocessing_complete(tmp_path: Path) -> None:
    """Although multiprocessing runs no atexit in a forked child, its recording ends with it."""
    run_child(POOL, tmp_path)
    recordings = read_all(tmp_path)
    assert [recording.path.suffix for recording in recordings] == [".arrow"] * 4
    assert all(recording.side.complete for recording in recordings)
    sizes = [event["bytes"] for recording in recordings for event in recording.named("piece")]
    assert sorted(sizes, key=str) == [0, 1, 2, None]


def test_child_that_records_nothing_leaves_nothing(trace: Path) -> None:
    """A forked helper that never uses the recorder has no file."""
    with tl.span("piece"):
        pass
    context = multiprocessing.get_context("fork")
    child = context.Process(target=os.getpid)
    child.start()
    child.join()
    tl.stop()
    assert len(list(trace.iterdir())) == 1


KILLED = """
import os, signal, sys
import tracelens as tl
tl.start(sys.argv[1])
span = tl.span("piece")
with span:
    pass
child = os.fork()
if child == 0:
    with span:
        os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
"""


def test_killed_child_shows_where_it_was(tmp_path: Path) -> None:
    """A child that is killed leaves segments, which show the open span."""
    run_child(KILLED, tmp_path)
    recording_by_suffix = {recording.path.suffix: recording for recording in read_all(tmp_path)}
    assert recording_by_suffix[".segments"].one("piece")["status"] == "open"
    assert recording_by_suffix[".arrow"].one("piece")["status"] == "closed"
    assert not recording_by_suffix[".segments"].side.complete
