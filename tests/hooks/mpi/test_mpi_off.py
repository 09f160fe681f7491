"""While nothing records, attach changes nothing."""

from __future__ import annotations

from support.launch.recording import run_child


def test_the_communicator_is_returned_as_it_is() -> None:
    run_child("""
        import tracelens as tl
        from mpi4py import MPI
        request = MPI.Request
        assert tl.attach(MPI.COMM_WORLD) is MPI.COMM_WORLD
        assert MPI.Request is request
    """)
