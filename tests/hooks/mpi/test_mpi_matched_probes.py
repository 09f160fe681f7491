"""A message that a probe takes out of the queue is numbered there: later receives are of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.launch.mpi import run_alone
from support.launch.recording import read_one

if TYPE_CHECKING:
    from pathlib import Path

WAYS = {
    "Mprobe": ("comm.Isend(a, 0, 3)", "comm.Mprobe()", "Recv(b)"),
    "Improbe": ("comm.Isend(a, 0, 3)", "comm.Improbe(0, 3, MPI.Status())", "Irecv(b).Wait()"),
    "mprobe": ("comm.isend('x', 0, 3)", "comm.mprobe(tag=3)", "recv()"),
    "improbe": ("comm.isend('x', 0, 3)", "comm.improbe()", "irecv().wait()"),
    "Message.Probe": ("comm.Isend(a, 0, 3)", "MPI.Message.Probe(comm, 0)", "Recv(b)"),
    "Message.iprobe": ("comm.isend('x', 0, 3)", "MPI.Message.iprobe(comm=comm)", "recv()"),
}


@pytest.mark.parametrize(("send", "probe", "receive"), WAYS.values(), ids=WAYS)
def test_receives_have_the_numbers_of_their_messages(
    tmp_path: Path, send: str, probe: str, receive: str
) -> None:
    program = f"""
    a, b = np.arange(4.0), np.zeros(4)
    sent = [{send} for _ in range(2)]
    first = {probe}
    second = {probe}
    second.{receive}
    first.{receive}
    MPI.Request.Waitall(sent)
    assert comm.Iprobe() is False and comm.improbe() is None
    """
    run_alone(program, tmp_path / "trace")
    received = [event for event in read_one(tmp_path / "trace").events if event["op"] == "recv"]
    assert [event["seq"] for event in received] == [1, 0]
    assert {(event["peer"], event["key"]) for event in received} == {(0, 3)}
    assert all(event["bytes"] and event["status"] == "closed" for event in received)


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
