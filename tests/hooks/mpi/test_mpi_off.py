"""While nothing records, attach changes nothing."""

from pathlib import Path

from support.launch.mpi import run_forked
from support.launch.recording import read_one


def test_the_communicator_is_returned_as_it_is() -> None:
    run_forked("""
        import tracelens as tl
        from mpi4py import MPI
        before = dict(vars(MPI.Comm)), dict(vars(MPI.Request))
        assert tl.attach(MPI.COMM_WORLD) is MPI.COMM_WORLD
        assert before == (dict(vars(MPI.Comm)), dict(vars(MPI.Request)))
    """)


def test_what_is_left_out_is_not_recorded(tmp_path: Path) -> None:
    """Nor what is made from it; the others are, with everything they make."""
    program = """
        from tracelens_instrument import hooks
        hooks.install()
        import tracelens as tl
        from mpi4py import MPI
        other = MPI.COMM_WORLD.Dup()
        assert tl.attach(MPI.COMM_WORLD, record=False) is MPI.COMM_WORLD
        MPI.COMM_WORLD.Barrier()
        MPI.COMM_WORLD.Split(0).Barrier()
        MPI.Intracomm(MPI.COMM_WORLD).barrier()
        other.Ibarrier().Wait()
    """
    run_forked(program, TRACELENS_DIR=str(tmp_path / "trace"))
    names = [event["name"] for event in read_one(tmp_path / "trace").events]
    assert names == ["Dup", "Ibarrier", "Wait"]
