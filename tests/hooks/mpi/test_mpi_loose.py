"""Collectives in which ranks wait for some others only: recorded, but not counted nor matched."""

from typing import Any

import pytest
from support.launch.mpi import in_all_ways, run_calls
from support.launch.recording import Recorded

from tracelens_instrument.hooks.mpi.table import COLLECTIVES

ARRAY = 4 * 8
WHOLE = "[{0}, ([2, 2], [0, 2]), MPI.DOUBLE]"
# On a ring of one rank, which is its own neighbour on both sides; `b` has room for both.
BUFFERS = {
    "Scan": ("(a, b[:4])", ARRAY),
    "Exscan": ("(MPI.IN_PLACE, a, op=MPI.MAX)", ARRAY),
    "Neighbor_allgather": ("(a, b)", ARRAY),
    "Neighbor_allgatherv": ("(a, [b, ([4, 4], [0, 4])])", ARRAY),
    "Neighbor_alltoall": ("(a, b[:4])", ARRAY),
    "Neighbor_alltoallv": (f"({WHOLE.format('a')}, {WHOLE.format('b')})", ARRAY),
    "Neighbor_alltoallw": ("([a, [2, 2], [0, 16], [D, D]], [b, [2, 2], [0, 16], [D, D]])", None),
}
OBJECTS = {
    "scan": "(3)",
    "exscan": "(3, MPI.SUM)",
    "neighbor_allgather": "('x')",
    "neighbor_alltoall": "(['x', 'y'])",
}
CALLS = in_all_ways(BUFFERS, OBJECTS)

PROGRAM = """
D = MPI.DOUBLE
rings = [c.Create_cart([1], periods=[True]) for c in (plain, comm)]
found = call_all(rings, room=8)
rings[1].Barrier()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Recorded]:
    return run_calls(CALLS, PROGRAM, tmp_path_factory.mktemp("loose") / "trace")


def test_the_whole_table_is_called_here() -> None:
    assert set(CALLS) == {name for name, row in COLLECTIVES.items() if row.op is None}


@pytest.mark.parametrize("name", CALLS)
def test_it_does_what_mpi_does(run: tuple[dict[str, Any], Recorded], name: str) -> None:
    plain, recording = run[0][name]
    assert recording == plain


@pytest.mark.parametrize("name", CALLS)
def test_it_is_communication_without_an_operation(
    run: tuple[dict[str, Any], Recorded], name: str
) -> None:
    event = run[1].one(name)
    assert (event["kind"], event["op"], event["status"]) == ("reduction", None, "closed")
    assert (event["bytes"], event["seq"]) == (CALLS[name][1], None)


def test_others_are_counted_as_if_they_were_not_there(run: tuple[dict[str, Any], Recorded]) -> None:
    assert run[1].one("Barrier")["seq"] == 0
