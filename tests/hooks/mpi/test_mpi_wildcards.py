"""A receive from anybody is recorded with who sent what; one that moves nothing is not recorded."""

from pathlib import Path
from typing import Any

from support.launch.mpi import run_alone
from support.launch.recording import Recorded, read_one


def test_source_tag_number_and_bytes_come_from_the_status(tmp_path: Path) -> None:
    program = """
    b, status = np.zeros(8), MPI.Status()
    def send(tag):
        plain.Isend(np.ones(2), 0, tag).Free()
    for call in (
        lambda: comm.Recv(b),
        lambda: comm.Recv(b, 0, MPI.ANY_TAG, None),
        lambda: comm.Recv(b, MPI.ANY_SOURCE, 5, status),
        lambda: comm.Irecv(b).Wait(),
        lambda: MPI.Request.Waitall([comm.Irecv(b), MPI.REQUEST_NULL]),
        lambda: MPI.Request.Waitany([MPI.REQUEST_NULL, comm.Irecv(b)]),
        lambda: MPI.Request.Waitsome([MPI.REQUEST_NULL, comm.Irecv(b)], []),
    ):
        send(5)
        call()
    print(json.dumps([status.Get_source(), status.Get_tag()]))
    """
    assert run_alone(program, tmp_path / "trace") == [0, 5]
    events = _calls(read_one(tmp_path / "trace"))
    assert [event["op"] for event in events] == ["recv"] * 7
    assert [(event["peer"], event["key"], event["bytes"]) for event in events] == [(0, 5, 16)] * 7
    assert [event["seq"] for event in events] == list(range(7))
    assert {event["status"] for event in events} == {"closed"}


def test_objects_are_returned_as_without_us(tmp_path: Path) -> None:
    program = """
    requests = [plain.isend(word, 0, 3) for word in ("x", "y", "z")]
    print(json.dumps([comm.recv(), comm.irecv().wait(), comm.irecv().test()]))
    """
    assert run_alone(program, tmp_path / "trace") == ["x", "y", [True, "z"]]
    assert _numbers(read_one(tmp_path / "trace")) == [(0, 3, 0), (0, 3, 1), (0, 3, 2)]


def test_a_message_to_nobody_is_not_recorded(tmp_path: Path) -> None:
    program = """
    b = np.zeros(2)
    comm.Send(b, MPI.PROC_NULL)
    comm.Recv(b, MPI.PROC_NULL)
    comm.Isend(b, MPI.PROC_NULL).Wait()
    comm.Sendrecv(b, MPI.PROC_NULL, 0, b, MPI.PROC_NULL)
    comm.Barrier()
    """
    run_alone(program, tmp_path / "trace")
    assert [event["name"] for event in _calls(read_one(tmp_path / "trace"))] == ["Barrier"]


def test_a_cancelled_receive_is_not_recorded(tmp_path: Path) -> None:
    program = """
    for source in (0, MPI.ANY_SOURCE):
        request = comm.Irecv(np.zeros(2), source, 9)
        request.Cancel()
        request.Wait()
    comm.Barrier()
    """
    run_alone(program, tmp_path / "trace")
    assert [event["name"] for event in _calls(read_one(tmp_path / "trace"))] == ["Barrier"]


def _numbers(recorded: Recorded) -> list[tuple[int, int, int]]:
    return [(event["peer"], event["key"], event["seq"]) for event in _calls(recorded)]


def _calls(recorded: Recorded) -> list[dict[str, Any]]:
    """Return the recorded calls, without waits."""
    return [event for event in recorded.events if event["kind"] != "wait"]
