"""A message that a probe takes out of the queue is numbered there: later receives are of others."""

from pathlib import Path
from typing import Any

import pytest
from support.launch.mpi import run_alone
from support.launch.recording import read_one

WAYS = {  # how to send, to probe, and to receive
    "Mprobe": ("comm.Isend(a, 0, 3)", "comm.Mprobe()", "Recv(b)"),
    "Improbe": ("comm.Isend(a, 0, 3)", "comm.Improbe(0, 3, MPI.Status())", "Irecv(b).Wait()"),
    "mprobe": ("comm.isend('x', 0, 3)", "comm.mprobe(tag=3)", "recv()"),
    "improbe": ("comm.isend('x', 0, 3)", "comm.improbe()", "irecv().wait()"),
    "Message.Probe": ("comm.Isend(a, 0, 3)", "MPI.Message.Probe(comm, 0)", "Recv(b)"),
    "Message.iprobe": ("comm.isend('x', 0, 3)", "MPI.Message.iprobe(comm=comm)", "recv()"),
}


PROGRAM = """
sent = [{send} for _ in range(2)]
first = {probe}
second = {probe}
second.{receive}
first.{receive}
MPI.Request.Waitall(sent)
assert comm.Iprobe() is False and comm.improbe() is None
"""


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What one process received, in all ways, one after the other."""
    trace = tmp_path_factory.mktemp("probes") / "trace"
    programs = [
        PROGRAM.format(send=send, probe=probe, receive=receive)
        for send, probe, receive in WAYS.values()
    ]
    run_alone("a, b = np.arange(4.0), np.zeros(4)" + "".join(programs), trace)
    return [event for event in read_one(trace).events if event["op"] == "recv"]


@pytest.mark.parametrize("way", WAYS)
def test_receives_have_the_numbers_of_their_messages(
    received: list[dict[str, Any]], way: str
) -> None:
    """The second message was received first."""
    index = 2 * list(WAYS).index(way)
    events = received[index : index + 2]
    assert [event["seq"] for event in events] == [index + 1, index]
    assert {(event["peer"], event["key"]) for event in events} == {(0, 3)}
    assert all(event["bytes"] and event["status"] == "closed" for event in events)


def test_waiting_for_a_message_is_waiting(tmp_path: Path) -> None:
    program = """
    comm.isend("x", 0)
    comm.probe()
    comm.recv()
    comm.Probe(MPI.PROC_NULL)
    assert comm.mprobe(MPI.PROC_NULL).recv() is None
    """
    run_alone(program, tmp_path / "trace")
    events = read_one(tmp_path / "trace").events
    assert [(event["name"], event["kind"]) for event in events] == [
        ("isend", "reduction"),
        ("probe", "wait"),
        ("recv", "reduction"),
        ("Probe", "wait"),
        ("mprobe", "wait"),
    ]
