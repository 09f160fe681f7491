"""Persistent requests: each start is a message or a collective of its own, until it completes."""

from pathlib import Path

import pytest
from support.launch.mpi import run_alone, run_ranks
from support.launch.recording import read_all, read_one

ROUNDS = 3
MESSAGES = f"""
other = comm.size - 1 - comm.rank
mine, theirs = np.full(4, comm.rank), np.empty(4, int)
requests = [comm.Send_init(mine, other, 5), comm.Recv_init(theirs, other, 5)]
assert all(isinstance(request, MPI.Prequest) for request in requests)
for turn in range({ROUNDS}):
    if turn:
        MPI.Prequest.Startall(requests)
    else:
        for request in requests:
            request.Start()
    MPI.Request.Waitall(requests)
    assert theirs.tolist() == [other] * 4
for request in requests:
    request.Free()
"""


@pytest.mark.parametrize("world", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_each_start_is_a_message(tmp_path: Path, world: int) -> None:
    """Numbered on, at both ends alike; a rank alone sends to itself."""
    if world == 1:
        run_alone(MESSAGES, tmp_path / "trace")
    else:
        run_ranks(MESSAGES, tmp_path / "trace", world)
    for process in read_all(tmp_path / "trace"):
        peer = world - 1 - (process.side.process.rank or 0)
        for name, op in (("Send_init", "send"), ("Recv_init", "recv")):
            messages = process.named(name)
            assert [event["seq"] for event in messages] == list(range(ROUNDS))
            assert {(e["op"], e["peer"], e["key"], e["bytes"]) for e in messages} == {
                (op, peer, 5, 32)
            }
            assert {event["status"] for event in messages} == {"closed"}


@pytest.mark.parametrize(
    "complete",
    [pytest.param("request.Wait()", marks=pytest.mark.slow), "MPI.Request.Waitall([request])"],
)
def test_each_start_is_a_collective(complete: str, tmp_path: Path) -> None:
    """Where this MPI has persistent ones (MPI 4)."""
    code = f"""
    if not hasattr(comm, "Allreduce_init"):
        raise SystemExit
    total = np.zeros(4)
    request = comm.Allreduce_init(np.ones(4), total)
    for _ in range({ROUNDS}):
        request.Start()
        {complete}
        assert total.tolist() == [1.0] * 4
    """
    run_alone(code, tmp_path / "trace")
    if not (tmp_path / "trace").exists():
        pytest.skip("this MPI has no persistent collectives")
    found = read_one(tmp_path / "trace").named("Allreduce_init")
    assert [event["seq"] for event in found] == list(range(ROUNDS))
    assert {(e["op"], e["bytes"], e["status"]) for e in found} == {("allreduce", 32, "closed")}


def test_one_that_is_never_started_records_nothing(tmp_path: Path) -> None:
    run_alone("comm.Send_init(np.ones(2), 0).Free()\ncomm.Barrier()", tmp_path / "trace")
    assert [event["name"] for event in read_one(tmp_path / "trace").events] == ["Barrier"]
