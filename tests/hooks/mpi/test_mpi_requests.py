"""A non-blocking operation ends in the trace when any of MPI's ways shows the program that it ended."""

from pathlib import Path
from typing import Any

import pytest
from support.launch.mpi import run_alone
from support.launch.recording import Recorded, read_one

SINGLE = ("Wait", "wait", "Test", "test", "Free")
# Not imported from the table: that would begin MPI in the process of the tests, which forks.
SEVERAL = (
    *("Waitall", "waitall", "Testall", "testall", "Waitany", "waitany", "Testany", "testany"),
    *("Waitsome", "waitsome", "Testsome", "testsome"),
)
NAMES = (*SINGLE, *SEVERAL)

PROGRAM = """
from tracelens_instrument.hooks.mpi.requests import COMPLETIONS

assert {*SINGLE, *COMPLETIONS} == {*NAMES}

def until(call, *arguments):
    result = call(*arguments)
    while result is False or (isinstance(result, tuple) and False in result[:2]) or result == []:
        result = call(*arguments)
    return result

found = {}
for name in NAMES:
    results = []
    for c in (plain, comm):
        request = c.Ibarrier()
        with tl.span(f"around {name}"):
            if hasattr(MPI.Request, name) and name in SINGLE:
                results.append(until(getattr(request, name)))
            else:
                results.append(until(getattr(MPI.Request, name), [MPI.REQUEST_NULL, request]))
    found[name] = results
comm.Ibarrier().Get_status()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Recorded]:
    folder: Path = tmp_path_factory.mktemp("requests") / "trace"
    head = f"NAMES, SINGLE = {NAMES}, {SINGLE}\n"
    return run_alone(head + PROGRAM, folder), read_one(folder)


@pytest.mark.parametrize("name", NAMES)
def test_it_returns_what_mpi_returns(run: tuple[dict[str, Any], Recorded], name: str) -> None:
    plain, recording = run[0][name]
    assert recording == plain


@pytest.mark.parametrize("name", NAMES)
def test_it_ends_the_operation(run: tuple[dict[str, Any], Recorded], name: str) -> None:
    position = NAMES.index(name)
    barrier = run[1].named("Ibarrier")[position]
    around = run[1].named(f"around {name}")[1]
    assert barrier["status"] == "closed"
    assert barrier["start_ns"] < around["start_ns"]
    assert _end(around) >= _end(barrier) > around["start_ns"]


def test_what_nobody_asked_about_stays_open(run: tuple[dict[str, Any], Recorded]) -> None:
    assert run[1].named("Ibarrier")[-1]["status"] == "open"


@pytest.mark.parametrize("name", NAMES)
def test_waiting_is_a_span_of_the_thread_and_testing_is_none(
    run: tuple[dict[str, Any], Recorded], name: str
) -> None:
    waits = run[1].named(name)
    if name.lower().startswith("wait"):
        (wait,) = waits
        assert (wait["kind"], wait["op"], wait["status"]) == ("wait", "request_wait", "closed")
        barrier = run[1].named("Ibarrier")[NAMES.index(name)]
        assert wait["start_ns"] < _end(barrier) <= _end(wait)
    else:
        assert not waits


POLLING = """
import time

def tested(call, apart_s, after_s):
    sent, got = np.zeros(1), np.zeros(1)
    request = comm.Irecv(got, 0, 7)
    begun = time.monotonic()
    while time.monotonic() - begun < after_s:
        assert not call(request)
        time.sleep(apart_s)
    comm.Isend(sent, 0, 7).Wait()
    with tl.span("last test"):
        while not call(request):
            pass

tested(lambda request: request.Test(), 0.0, 0.05)
tested(lambda request: MPI.Request.Testall([request]), 0.0, 0.05)
tested(lambda request: request.Test(), 0.02, 0.05)
"""


def test_a_loop_of_tests_is_waiting_and_tests_far_apart_are_none(tmp_path: Path) -> None:
    """What a program does between tests may be work, if it takes long."""
    run_alone(POLLING, tmp_path / "t")
    recording = read_one(tmp_path / "t")
    polled = []
    for received in recording.named("Irecv"):
        waits_inside = [
            poll
            for poll in recording.named("polling")
            if received["start_ns"] < poll["start_ns"] < _end(poll) <= _end(received)
        ]
        assert all((wait["kind"], wait["op"]) == ("wait", "request_wait") for wait in waits_inside)
        polled.append(sum(wait["duration_ns"] for wait in waits_inside) / 1e6)
    assert min(polled[:2]) > 10 > polled[2]


def _end(event: dict[str, Any]) -> int:
    return int(event["start_ns"] + event["duration_ns"])
