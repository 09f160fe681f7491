"""A failure of ours never reaches the training, which makes each call of MPI's exactly once."""

from pathlib import Path

import pytest
from support.launch.mpi import run_alone
from support.launch.recording import read_one

BREAKAGES = {
    "numbers": "log.CommLog.span = broken",
    "bytes": "log.payload_of_call = log.payload_of_buffer = broken",
    "spans": "recorder.span = recorder.track = broken",
    "receipts": "log.Receipt.__init__ = broken",
    "ends": "log.Receipt.end = broken",
    "completions": "requests.Completion.list_completed = property(broken)",
}


QUICK = {"spans", "completions"}


@pytest.mark.parametrize(
    "breakage",
    [
        pytest.param(breakage, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for name, breakage in BREAKAGES.items()
    ],
)
def test_calls_are_made_once_whatever_breaks(tmp_path: Path, breakage: str) -> None:
    program = f"""
    import warnings
    from tracelens_instrument import recorder
    from tracelens_instrument.hooks.mpi import log, requests
    warnings.simplefilter("ignore")

    def broken(*args, **kwargs):
        raise ZeroDivisionError

    {breakage}
    a, b = np.arange(2.0), np.zeros(2)
    comm.Allreduce(a, b)
    request = comm.Iallreduce(a, b)
    MPI.Request.Waitall([request])
    received = comm.irecv()
    comm.send("x", 0)
    word = MPI.Request.waitall([received])
    sent = plain.isend("y", 0)
    again, left = comm.recv(), plain.iprobe()
    sent.Free()
    print(json.dumps([b.tolist(), comm.Split(0).allreduce(2), word, again, left]))
    """
    result = run_alone(program, tmp_path / "trace")
    assert result == [[0.0, 1.0], 2, ["x"], "y", False]


def test_exceptions_of_mpi_pass_and_close_the_span(tmp_path: Path) -> None:
    program = """
    b = np.zeros(2)
    calls = (
        lambda: comm.Send(b, 99),
        lambda: comm.Bcast(b, root=99),
        lambda: comm.Ibcast(b, root=99),
        lambda: comm.Isend(b, 99),
        lambda: comm.Send(),
    )
    found = []
    for call in calls:
        try:
            call()
        except (MPI.Exception, TypeError) as error:
            found.append(type(error).__name__)
    print(json.dumps(found))
    """
    raised = run_alone(program, tmp_path / "trace")
    assert raised == ["Exception"] * 4 + ["TypeError"]
    events = read_one(tmp_path / "trace").events
    assert [event["status"] for event in events] == ["exception"] * len(raised)


def test_a_communicator_that_cannot_be_described_works_unrecorded(tmp_path: Path) -> None:
    program = """
    from tracelens_instrument.hooks.mpi import communicators
    import warnings
    warnings.simplefilter("ignore")

    def broken(*args):
        raise ZeroDivisionError

    communicators.record_communicator = broken
    other = plain.Dup()
    print(json.dumps([tl.attach(other) is other, other.allreduce(3), comm.Split(0).allreduce(4)]))
    """
    assert run_alone(program, tmp_path / "trace") == [True, 3, 4]
    assert [event["name"] for event in read_one(tmp_path / "trace").events] == ["Split"]
