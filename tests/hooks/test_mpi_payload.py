"""How many bytes a rank has in a collective whose buffer belongs to all ranks."""

from __future__ import annotations

from support.launch.recording import run_child


def test_in_place_each_rank_has_its_share() -> None:
    """Of a buffer for four ranks a quarter; all of it where each rank gives the whole."""
    run_child("""
        import numpy as np
        from mpi4py import MPI
        from tracelens.schema.record import NO_BYTES
        from tracelens_instrument.hooks.mpi.log import payload_of_call as of_call
        from tracelens_instrument.hooks.mpi.table import Collective
        for instead in (MPI.IN_PLACE, None):
            values = {"sendbuf": instead, "recvbuf": np.zeros(12)}
            buffers = {"payload_parameter": "sendbuf", "in_place_parameter": "recvbuf"}
            shared = Collective("all_gather", **buffers, in_place_holds_all=True)
            whole = Collective("allreduce", **buffers)
            assert of_call(shared, values, 4) == 24
            assert of_call(whole, values, 4) == 96
            assert of_call(shared, {**values, "recvbuf": object()}, 4) == NO_BYTES
        given = {"sendbuf": np.zeros(2), "recvbuf": np.zeros(12)}
        assert of_call(shared, given, 4) == of_call(whole, given, 4) == 16
    """)
