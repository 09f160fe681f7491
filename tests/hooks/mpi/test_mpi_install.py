"""Installed, the hook records COMM_WORLD as soon as the program has begun MPI, be it by itself."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.launch.mpi import MPIEXEC, run_forked
from support.launch.patience import PATIENCE_S
from support.launch.record import record_command
from support.launch.recording import clean_environment, read_one, run_child
from support.tiers import mark_slow

pytestmark = pytest.mark.end_to_end

BEGINNINGS = {
    "import": "",
    "Init": "MPI.Init()",
    "Init_thread": "assert MPI.Init_thread(MPI.THREAD_MULTIPLE) == MPI.THREAD_MULTIPLE",
}


@pytest.mark.parametrize("beginning", mark_slow(BEGINNINGS, quick={"import"}))
def test_it_waits_until_mpi_runs(tmp_path: Path, beginning: str) -> None:
    automatic = beginning == "import"
    program = f"""
        from tracelens_instrument import hooks
        hooks.install()
        import mpi4py
        mpi4py.rc.initialize = {automatic}
        from mpi4py import MPI
        assert MPI.Is_initialized() == {automatic}
        {BEGINNINGS[beginning]}
        MPI.COMM_WORLD.Barrier()
        request = MPI.COMM_WORLD.Ibarrier()
        MPI.Request.Waitall([request])
    """
    run_child(program, TRACELENS_DIR=str(tmp_path / "trace"))
    events = read_one(tmp_path / "trace").events
    found = [(event["name"], event["status"]) for event in events]
    assert found == [("Barrier", "closed"), ("Ibarrier", "closed"), ("Waitall", "closed")]


def test_operations_that_outlive_the_recording_do_no_harm(tmp_path: Path) -> None:
    program = """
        import tracelens as tl
        from mpi4py import MPI
        comm = tl.attach(MPI.COMM_WORLD)
        request = comm.Ibarrier()
        message = comm.irecv()
        tl.stop()
        request.Wait()
        comm.send("x", 0)
        assert message.wait() == "x"
        comm.Barrier()
    """
    run_forked(program, TRACELENS_DIR=str(tmp_path / "trace"))
    events = read_one(tmp_path / "trace").events
    assert [(event["name"], event["status"]) for event in events] == [
        ("Ibarrier", "open"),
        ("irecv", "open"),
    ]


@pytest.mark.slow
def test_nobody_waits_for_a_rank_that_is_not_recorded(tmp_path: Path) -> None:
    """One rank under a `record` of its own, the other without: what they do is what they do alone."""
    program = tmp_path / "train.py"
    program.write_text("from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 2")
    training = [sys.executable, "-m", "mpi4py", str(program)]
    recorded = [*record_command("--no-verdict", "--out", tmp_path / "trace", "--"), *training]
    command = [str(MPIEXEC), "-n", "1", *training, ":", "-n", "1", *recorded]
    done = subprocess.run(
        command, env=clean_environment(), capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [event["name"] for event in read_one(tmp_path / "trace").events] == ["allreduce"]
