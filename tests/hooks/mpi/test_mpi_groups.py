"""Communicators between two groups, and one-sided communication, under a recording of everything."""

from pathlib import Path

import pytest
from support.launch.mpi import run_alone, run_ranks, run_recorded
from support.launch.recording import Recorded, read_all

pytestmark = pytest.mark.end_to_end

BETWEEN = """
half = world.Split(world.rank % 2)
there = half.Create_intercomm(0, world, 1 - world.rank % 2)
if world.rank == 0:
    there.send("x", 1, tag=7)
if world.rank == 3:
    assert there.recv(source=0, tag=7) == "x"
assert there.allreduce(1) == 2
assert there.Merge().size == 4
"""
WINDOW = """
window = MPI.Win.Allocate(8, comm=world)
window.Fence()
target = (world.rank + 1) % world.size
window.Put(np.ones(1), target)
window.Fence()
window.Lock(target)
window.Unlock(target)
window.Free()
"""
EXPOSED = """
window = MPI.Win.Create(np.zeros(4), 8, comm=world)
everybody = world.Get_group()
others = everybody.Excl([world.rank])
for turn in range(2):
    window.Post(others)
    window.Start(others)
    for other in range(world.size):
        if other != world.rank:
            window.Put(np.ones(1), other)
    window.Complete()
    if turn:
        window.Wait()
    else:
        while not window.Test():
            pass
assert others.Get_size() == world.size - 1  # it is still there
window.Free()
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Recorded]:
    """What four ranks record of messages between two groups, and then of two windows."""
    code = BETWEEN + WINDOW + EXPOSED
    return run_recorded(code, tmp_path_factory.mktemp("groups") / "t", 4)


def test_messages_between_groups_are_matched(ranks: list[Recorded]) -> None:
    """Ranks 0, 2 and 1, 3: what rank 0 sends to rank 1 of the others is for rank 3 of all."""
    sent, received = ranks[0].one("send"), ranks[3].one("recv")
    assert (sent["peer"], received["peer"]) == (3, 0)
    assert (sent["key"], sent["seq"]) == (received["key"], received["seq"]) == (7, 0)
    uids = [
        {row.index: row.uid for row in process.side.communicators}[event["communicator"]]
        for process, event in ((ranks[0], sent), (ranks[3], received))
    ]
    assert uids[0] == uids[1]


def test_their_collectives_are_communication_without_an_operation(ranks: list[Recorded]) -> None:
    for process in ranks:
        event = process.one("allreduce")
        assert (event["kind"], event["op"], event["seq"]) == ("reduction", None, None)
        assert process.one("Merge")["op"] is None


def test_a_fence_is_a_barrier_of_the_windows_group(ranks: list[Recorded]) -> None:
    """What makes and frees a window, and locks, is communication without an operation."""
    for process in ranks:
        events = [event for event in process.events if event["name"].startswith("Win.")]
        freed = next(i for i, event in enumerate(events) if event["name"] == "Win.Free")
        events_until_freed = events[: freed + 1]
        assert [(event["name"], event["op"], event["seq"]) for event in events_until_freed] == [
            ("Win.Allocate", None, None),
            ("Win.Fence", "barrier", 0),
            ("Win.Fence", "barrier", 1),
            ("Win.Lock", None, None),
            ("Win.Unlock", None, None),
            ("Win.Free", None, None),
        ]
        assert {event["kind"] for event in events_until_freed} == {"reduction"}
        groups = {row.index: (row.name, row.ranks) for row in process.side.communicators}
        assert groups[events_until_freed[1]["communicator"]] == ("MPI_COMM_WORLD.Win", [0, 1, 2, 3])


@pytest.mark.slow
def test_a_fence_after_nothing_is_not_matched(tmp_path: Path) -> None:
    """MPI need not wait in it."""
    code = WINDOW.replace("window.Fence()", "window.Fence(assertion=MPI.MODE_NOPRECEDE)", 1)
    for process in run_recorded(code, tmp_path / "t", 2):
        found = [(event["op"], event["seq"]) for event in process.named("Win.Fence")]
        assert found == [(None, None), ("barrier", 0)]


def test_who_opens_a_window_for_whom_are_messages(ranks: list[Recorded]) -> None:
    """`Start` waits for each `Post`, `Wait` for each `Complete`; what a test sees is counted."""
    _check_exposed(ranks)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_who_opens_a_window_alone(tmp_path: Path, world: int) -> None:
    """It is the first window of the program."""
    _check_exposed(run_recorded(EXPOSED, tmp_path / "t", world))


def _check_exposed(ranks: list[Recorded]) -> None:
    for rank, process in enumerate(ranks):
        peers = [peer for peer in range(len(ranks)) if peer != rank]
        for name, op, tag, numbers in (
            ("Win.Post", "send", 0, (0, 1)),
            ("Win.Start", "recv", 0, (0, 1)),
            ("Win.Complete", "send", 1, (0, 1)),
            ("Win.Wait", "recv", 1, (1,)),
        ):
            exposed_events = process.named(name)
            expected = [(op, peer, tag, number) for number in numbers for peer in peers]
            assert [(e["op"], e["peer"], e["key"], e["seq"]) for e in exposed_events] == expected
            assert {e["status"] for e in exposed_events} == {"closed"}


ATTACHED = """
window = MPI.Win.Allocate(8, comm=MPI.COMM_WORLD)
other = MPI.Win.Allocate(8, comm=MPI.COMM_SELF)
window.Fence()
other.Fence()
window.Free()
other.Free()
"""


@pytest.mark.parametrize("world", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_windows_of_an_attached_communicator_are_recorded(tmp_path: Path, world: int) -> None:
    """Those that are made from then on, and no others."""
    if world == 1:
        run_alone(ATTACHED, tmp_path / "t")
    else:
        run_ranks(ATTACHED, tmp_path / "t", world)
    for process in read_all(tmp_path / "t"):
        assert [event["op"] for event in process.named("Win.Fence")] == ["barrier"]
