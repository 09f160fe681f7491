"""What a program sees of mpi4py while it is recorded is what it sees without."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.launch.mpi import run_forked
from support.launch.recording import read_one

PROGRAM = """
import copy, inspect, json, pickle
import numpy as np
from mpi4py import MPI

RECORDED = {recorded}
if RECORDED:
    from tracelens_instrument import hooks
    hooks.install()
world = MPI.COMM_WORLD
a, b = np.arange(3.0), np.zeros(3)
world.Allreduce(a, b)

class Mine(MPI.Intracomm):
    calls = 0
    def Allreduce(self, *args, **kwargs):
        self.calls += 1
        return super().Allreduce(*args, **kwargs)

mine = Mine(world)
mine.Allreduce(a, b)
MPI.Comm.Allreduce(world, a, b)
request, persistent = world.Ibarrier(), world.Send_init(a, 0)
ring = world.Create_cart([1], periods=[True])
graph = world.Create_graph([1], [0])
near = world.Create_dist_graph_adjacent([0], [0])
refused = []
for broken in (
    lambda: pickle.dumps(world.Dup()),
    lambda: MPI.Comm.Barrier(5),
    lambda: world.Send(a, 99),
    lambda: world.Recv(a, 0, 0, None, None),
    lambda: MPI.Request.Waitall(5),
    lambda: MPI.Request.Waitall(each for each in ()),
    lambda: MPI.COMM_NULL.Barrier(),
    lambda: setattr(MPI.Comm, "Barrier", None),
    lambda: setattr(world, "Barrier", None),
    lambda: hash(world),
):
    try:
        broken()
    except Exception as error:
        refused.append([type(error).__name__, str(error).partition("\\n")[0]])
found = {{
    "types": [type(each).__qualname__ for each in
              (world, mine, ring, graph, near, world.Dup(), world.Split(0), request, persistent)],
    "calls": mine.calls,
    "identities": [MPI.COMM_WORLD is world, pickle.loads(pickle.dumps(world)) is world,
                   type(request) is MPI.Request, type(persistent) is MPI.Prequest,
                   MPI.Request(request) == request, MPI.Intracomm(world) == world,
                   copy.copy(world) is world, MPI.Comm.fromhandle(world.handle) == world],
    "handles": [world.handle, MPI.COMM_SELF.handle, MPI._sizeof(world)],
    "pickles": [pickle.dumps(each).hex() for each in (world, MPI.COMM_SELF, MPI.COMM_NULL)],
    "bases": [[base.__qualname__ for base in getattr(MPI, name).__mro__] for name in
              ("Intracomm", "Intercomm", "Cartcomm", "Request", "Prequest", "Win", "Message")],
    "public": sorted(vars(MPI)),
    "methods": {{
        f"{{name}}.{{key}}": [value.__name__, value.__qualname__, value.__module__, value.__doc__,
                              str(inspect.signature(value)).partition(" at 0x")[0]]
        for name, owner in vars(MPI).items() if isinstance(owner, type)
        for key, value in inspect.getmembers(owner, inspect.isroutine)
        if getattr(value, "__module__", None) == "mpi4py.MPI"
    }},
    "instances": sorted(dir(world)) == sorted(dir(MPI.Intracomm)),
    "refused": refused,
    "results": [b.tolist(), request.Wait(), MPI.Request.Waitall([]), MPI.Request.Waitany([]),
                bool(request), bool(persistent), persistent.Free(), world.allreduce(2)],
}}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Any]:
    folder: Path = tmp_path_factory.mktemp("invisible") / "trace"
    results = {
        recorded: json.loads(
            run_forked(PROGRAM.format(recorded=recorded), TRACELENS_DIR=str(folder)).stdout
        )
        for recorded in (False, True)
    }
    names = [event["name"] for event in read_one(folder).events]
    assert names.count("Allreduce") == 3  # by the object, by a subclass, by way of the class
    return results


@pytest.mark.parametrize(
    "what",
    [
        "types", "calls", "identities", "handles", "pickles", "bases", "public", "methods",
        "instances", "refused", "results",
    ],
)  # fmt: skip
def test_a_recorded_program_behaves_as_an_unrecorded_one(
    outcomes: dict[bool, Any], what: str
) -> None:
    assert outcomes[True][what] == outcomes[False][what]
    assert outcomes[True][what]


def test_identities_are_as_mpi_promises(outcomes: dict[bool, Any]) -> None:
    assert outcomes[True]["identities"] == [True] * 8


def test_when_recording_stops_all_is_put_back(tmp_path: Path) -> None:
    """And taken again when it starts again, also what was attached by hand."""
    program = f"""
        import tracelens as tl
        from mpi4py import MPI
        owners = [owner for owner in vars(MPI).values() if isinstance(owner, type)]
        def contents():
            return [(owner, name, value) for owner in owners for name, value in vars(owner).items()]
        def same(one, other):
            return len(one) == len(other) and all(a[2] is b[2] for a, b in zip(one, other))
        before = contents()
        tl.start({str(tmp_path / "trace")!r})
        comm = tl.attach(MPI.COMM_WORLD)
        assert not same(before, contents())
        comm.Barrier()
        tl.stop()
        assert same(before, contents())
        comm.Barrier()
        tl.start({str(tmp_path / "again")!r})
        comm.barrier()
        assert not same(before, contents())
        tl.stop()
        assert same(before, contents())
    """
    run_forked(program)
    assert [event["name"] for event in read_one(tmp_path / "trace").events] == ["Barrier"]
    assert [event["name"] for event in read_one(tmp_path / "again").events] == ["barrier"]


def test_stopped_before_the_first_event(tmp_path: Path) -> None:
    program = """
        from tracelens_instrument import hooks
        hooks.install()
        from mpi4py import MPI
        import tracelens as tl
        recording = MPI.Comm.__dict__["Barrier"]
        tl.stop()
        assert MPI.Comm.__dict__["Barrier"] is recording.__wrapped__
        MPI.COMM_WORLD.Barrier()
    """
    run_forked(program, TRACELENS_DIR=str(tmp_path / "trace"))
    assert not (tmp_path / "trace").exists()


def test_before_mpi_runs_its_functions_are_put_back(tmp_path: Path) -> None:
    program = """
        from tracelens_instrument import hooks
        import mpi4py
        mpi4py.rc.initialize = False
        from mpi4py import MPI
        before = MPI.Init, MPI.Init_thread
        hooks.install()
        assert before != (MPI.Init, MPI.Init_thread)
        MPI.Init()
        assert before == (MPI.Init, MPI.Init_thread)
        MPI.COMM_WORLD.Barrier()
        MPI.Finalize()
    """
    run_forked(program, TRACELENS_DIR=str(tmp_path / "trace"))
    assert [event["name"] for event in read_one(tmp_path / "trace").events] == ["Barrier"]
