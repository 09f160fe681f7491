"""Communicators between two groups, and one-sided communication, under a recording of everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.launch.mpi import run_recorded

if TYPE_CHECKING:
    from pathlib import Path

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
window.Put(np.ones(1), 1 - world.rank)
window.Fence()
window.Lock(1 - world.rank)
window.Unlock(1 - world.rank)
window.Free()
"""


def test_messages_between_groups_are_matched(tmp_path: Path) -> None:
    """Ranks 0, 2 and 1, 3: what rank 0 sends to rank 1 of the others is for rank 3 of all."""
    ranks = run_recorded(BETWEEN, tmp_path / "t", 4)
    sent, received = ranks[0].one("send"), ranks[3].one("recv")
    assert (sent["peer"], received["peer"]) == (3, 0)
    assert (sent["key"], sent["seq"]) == (received["key"], received["seq"]) == (7, 0)
    uids = [
        {row.index: row.uid for row in process.side.communicators}[event["communicator"]]
        for process, event in ((ranks[0], sent), (ranks[3], received))
    ]
    assert uids[0] == uids[1]


def test_their_collectives_are_communication_without_an_operation(tmp_path: Path) -> None:
    for process in run_recorded(BETWEEN, tmp_path / "t", 4):
        event = process.one("allreduce")
        assert (event["kind"], event["op"], event["seq"]) == ("reduction", None, None)
        assert process.one("Merge")["op"] is None


def test_synchronization_of_windows_is_communication(tmp_path: Path) -> None:
    for process in run_recorded(WINDOW, tmp_path / "t", 2):
        names = [event["name"] for event in process.events]
        assert names == [
            f"Win.{name}" for name in ("Allocate", "Fence", "Fence", "Lock", "Unlock", "Free")
        ]
        assert {(event["kind"], event["op"]) for event in process.events} == {("reduction", None)}
