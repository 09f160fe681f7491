"""Real ranks write traces that fit together: same collectives everywhere, and messages in pairs."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.launch.mpi import run_ranks
from support.launch.recording import Recorded, read_all

import tracelens as tl
from tracelens.schema.vocabulary import COLLECTIVES

pytestmark = pytest.mark.end_to_end

RANKS = 3
STEPS = 4

PROGRAM = f"""
rank, size = comm.rank, comm.size
left, right = (rank - 1) % size, (rank + 1) % size
pair = comm.Split(rank % 2, rank)
weights, gradient = np.zeros(16), np.zeros(16)
for number in range({STEPS}):
    with tl.step(number):
        requests = [comm.Iallreduce(MPI.IN_PLACE, part) for part in np.split(gradient, 2)]
        with tl.span("overlapped", kind="backprop"):
            pair.Allreduce(MPI.IN_PLACE, weights)
        MPI.Request.Waitall(requests)
        comm.Bcast(weights, root=1)
        comm.Scatter(np.zeros((size, 2)) if rank == 2 else None, np.zeros(2), root=2)
        comm.Sendrecv(weights, right, 1, np.zeros(16), left, 1)
        if rank == 0:
            for source in (1, 2, 2, 1):
                comm.recv(None, source)
            MPI.Request.Waitall([comm.Irecv(np.zeros(3)) for _ in "ab"])
        else:
            comm.send("hello", 0, tag=rank)
            comm.isend(rank, 0, tag=9).wait()
            comm.Ssend(np.zeros(3), 0, 4)
        pair.barrier()
assert comm.allreduce(rank) == size * (size - 1) // 2
tl.stop()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks") / "trace"
    run_ranks(PROGRAM, folder, RANKS)
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[Recorded]:
    return read_all(folder)


def test_each_process_knows_its_rank(ranks: list[Recorded]) -> None:
    found = [(recorded.side.process.rank, recorded.side.process.world) for recorded in ranks]
    assert found == [(rank, RANKS) for rank in range(RANKS)]


def test_all_members_issue_the_same_collectives_in_the_same_order(ranks: list[Recorded]) -> None:
    issued: dict[str, list[list[Any]]] = {}
    for recorded in ranks:
        for row in recorded.side.communicators:
            assert recorded.side.process.rank in row.ranks
            calls = _collectives(recorded, row.index)
            issued.setdefault(row.uid, []).append([row.ranks, calls])
    assert sorted(len(members[0][0]) for members in issued.values()) == [1, 2, 3]
    for members in issued.values():
        first = members[0]
        assert first[1]
        assert members == [first] * len(first[0])


def test_collectives_are_matched_and_complete(folder: Path) -> None:
    arrivals = tl.open(folder).arrivals
    assert arrivals.height >= 4 * STEPS
    assert arrivals["arrived"].to_list() == arrivals["expected"].to_list()


def test_non_blocking_ones_overlap_what_the_rank_does_meanwhile(ranks: list[Recorded]) -> None:
    for recorded in ranks:
        flights, works = recorded.named("Iallreduce"), recorded.named("overlapped")
        assert len(flights) == 2 * len(works) == 2 * STEPS
        for number, work in enumerate(works):
            for flight in flights[2 * number : 2 * number + 2]:
                assert flight["start_ns"] < work["start_ns"]
                assert _end(flight) > _end(work)


def test_every_message_sent_is_received(ranks: list[Recorded]) -> None:
    sent: Counter[tuple[Any, ...]] = Counter()
    received: Counter[tuple[Any, ...]] = Counter()
    for recorded in ranks:
        me = recorded.side.process.rank
        for event in recorded.events:
            if event["op"] == "send":
                sent[me, event["peer"], event["key"], event["seq"]] += 1
            if event["op"] == "recv":
                received[event["peer"], me, event["key"], event["seq"]] += 1
    assert sent == received
    assert set(sent.values()) == {1}
    assert len(sent) == STEPS * (RANKS + 3 * (RANKS - 1))


def test_peers_and_roots_are_global_ranks(ranks: list[Recorded]) -> None:
    for recorded in ranks:
        me = recorded.side.process.rank
        assert {event["peer"] for event in recorded.named("Bcast")} == {1}
        assert {event["peer"] for event in recorded.named("Scatter")} == {2}
        neighbours = {e["op"]: e["peer"] for e in recorded.named("Sendrecv")}
        assert neighbours == {"send": (me + 1) % RANKS, "recv": (me - 1) % RANKS}


def _collectives(recorded: Recorded, communicator: int) -> list[tuple[Any, ...]]:
    calls = [
        (event["seq"], event["op"], event["name"], event["bytes"])
        for event in recorded.events
        if event["communicator"] == communicator and event["op"] in COLLECTIVES
    ]
    return sorted(calls, key=lambda call: call[0])


def _end(event: dict[str, Any]) -> int:
    return int(event["start_ns"] + event["duration_ns"])
