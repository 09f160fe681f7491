"""Every collective of the table does what MPI does, and is recorded with operation, bytes and number."""

from typing import Any

import pytest
from support.launch.mpi import in_all_ways, run_calls
from support.launch.recording import Recorded

from tracelens_instrument.hooks.mpi.table import COLLECTIVES

ARRAY = 4 * 8
# How to call each blocking method that takes buffers, and the bytes of this rank in it.
BUFFERS = {
    "Barrier": ("()", None),
    "Bcast": ("(a)", ARRAY),
    "Reduce": ("(a, b, root=0)", ARRAY),
    "Allreduce": ("(MPI.IN_PLACE, b, op=MPI.MAX)", ARRAY),
    "Allgather": ("(a, b)", ARRAY),
    "Allgatherv": ("(a, [b, [4]])", ARRAY),
    "Gather": ("(a, b)", ARRAY),
    "Gatherv": ("([a, 3], [b, [3]])", 3 * 8),
    "Scatter": ("(a, b)", ARRAY),
    "Scatterv": ("([a, [2]], [b, 2, MPI.DOUBLE])", 2 * 8),
    "Alltoall": ("(a, b)", ARRAY),
    "Alltoallv": ("([a, [4], [0], MPI.DOUBLE], [b, [4]])", ARRAY),
    "Alltoallw": ("([a, [4], [0], [MPI.DOUBLE]], [b, [4], [0], [MPI.DOUBLE]])", None),
    "Reduce_scatter": ("(a, b, recvcounts=[4])", ARRAY),
    "Reduce_scatter_block": ("(sendbuf=a, recvbuf=b)", ARRAY),
}
OBJECTS = {
    "barrier": "()",
    "bcast": "({'x': 1}, root=0)",
    "reduce": "(3, MPI.SUM, 0)",
    "allreduce": "(3)",
    "allgather": "('x')",
    "gather": "('x', 0)",
    "scatter": "(['x'])",
    "alltoall": "(['x'])",
}
ROOTED = {"broadcast", "reduce", "gather", "scatter"}
CALLS = in_all_ways(BUFFERS, OBJECTS)

PROGRAM = "print(json.dumps(call_all((plain, comm), room=4)))"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Recorded]:
    return run_calls(CALLS, PROGRAM, tmp_path_factory.mktemp("collectives") / "trace")


def test_the_whole_table_is_called_here() -> None:
    """But for those without an operation, which have a test of their own."""
    assert set(CALLS) == {name for name, row in COLLECTIVES.items() if row.op is not None}


@pytest.mark.parametrize("name", CALLS)
def test_it_does_what_mpi_does(run: tuple[dict[str, Any], Recorded], name: str) -> None:
    plain, recording = run[0][name]
    assert recording == plain


@pytest.mark.parametrize("name", CALLS)
def test_it_is_recorded_with_operation_bytes_and_root(
    run: tuple[dict[str, Any], Recorded], name: str
) -> None:
    event, op = run[1].one(name), COLLECTIVES[name].op
    assert (event["kind"], event["op"], event["status"]) == ("reduction", op, "closed")
    assert event["bytes"] == CALLS[name][1]
    assert event["peer"] == (0 if op in ROOTED else None)
    assert event["algorithm"] == ("pickle" if name in OBJECTS and name != "barrier" else None)


@pytest.mark.parametrize("name", CALLS)
def test_only_non_blocking_ones_are_beside_the_thread(
    run: tuple[dict[str, Any], Recorded], name: str
) -> None:
    recorded = run[1]
    track = recorded.side.threads[recorded.one(name)["thread"]]
    assert track.in_flight == name.startswith("I")


def test_they_are_counted_on_their_communicator(run: tuple[dict[str, Any], Recorded]) -> None:
    events = {event["name"]: event for event in run[1].events if event["kind"] == "reduction"}
    assert [events[name]["seq"] for name in CALLS] == list(range(len(CALLS)))
    (world,) = run[1].side.communicators
    assert world.ranks == [0]
    assert {event["communicator"] for event in events.values()} == {world.index}
