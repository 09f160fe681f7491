"""Communicators made from a recording one record themselves, under numbers of their own."""

from pathlib import Path

from support.launch.mpi import run_alone
from support.launch.recording import read_one


def test_each_way_of_making_one(tmp_path: Path) -> None:
    program = """
    group = comm.Get_group()
    cart = comm.Create_cart([1])
    made = [
        comm.Split(0), comm.Dup(), comm.Clone(), comm.Create(group), comm.Create_group(group),
        comm.Split_type(MPI.COMM_TYPE_SHARED), cart, cart.Sub([True]), comm.Split(1).Dup(),
    ]
    for each in made:
        each.Barrier()
    print(json.dumps([cart.Get_coords(0), isinstance(cart, MPI.Cartcomm)]))
    """
    assert run_alone(program, tmp_path / "trace") == [[0], True]
    recorded = read_one(tmp_path / "trace")
    barriers = recorded.named("Barrier")
    names = {row.index: row.name for row in recorded.side.communicators}
    communicator_names = (
        "Split",
        "Dup",
        "Clone",
        "Create",
        "Create_group",
        "Split_type",
        "Create_cart",
        "Create_cart.Sub",
        "Split.Dup",
    )
    assert [names[event["communicator"]] for event in barriers] == [
        f"MPI_COMM_WORLD.{name}" for name in communicator_names
    ]
    assert {event["seq"] for event in barriers} == {0}
    assert len({row.uid for row in recorded.side.communicators}) == len(names)


def test_no_communicator_stays_none(tmp_path: Path) -> None:
    program = "print(json.dumps(comm.Split(MPI.UNDEFINED) == MPI.COMM_NULL))"
    assert run_alone(program, tmp_path / "trace") is True


def test_a_communicator_with_the_handle_of_a_freed_one_is_another(tmp_path: Path) -> None:
    program = """
    for _ in range(2):
        mine = plain.Dup()
        assert tl.attach(mine) is mine is tl.attach(mine)
        mine.Barrier()
        mine.Free()
    """
    run_alone(program, tmp_path / "trace")
    first, second = read_one(tmp_path / "trace").named("Barrier")
    assert first["communicator"] != second["communicator"]
