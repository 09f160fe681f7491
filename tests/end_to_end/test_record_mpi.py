"""`tracelens record` sees an MPI training whose script does not mention TraceLens."""

import sys
from pathlib import Path

import pytest
from support.launch.mpi import launch
from support.launch.recording import Recorded, read_all, run_command

import tracelens as tl

pytestmark = pytest.mark.end_to_end

RANKS = 3
ROUNDS = 5

PLAIN = f"""
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
gradient, total = np.ones(32), np.zeros(32)
for _ in range({ROUNDS}):
    comm.Allreduce(gradient, total)
    requests = [comm.Iallreduce(gradient, np.zeros(32)) for _ in range(2)]
    MPI.Request.Waitall(requests)
    if comm.rank == 0:
        assert sorted(comm.recv() for _ in range(comm.size - 1)) == [1, 2]
    else:
        comm.send(comm.rank, 0)
assert total.tolist() == [comm.size] * 32
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("record") / "trace"
    script = folder.parent / "train.py"
    script.write_text(PLAIN)
    tracelens = str(Path(sys.executable).with_name("tracelens"))
    run_command(
        [tracelens, "record", "--out", str(folder), "--", *launch(script, RANKS)], cwd=folder.parent
    )
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[Recorded]:
    return read_all(folder)


def test_only_the_ranks_are_recorded(ranks: list[Recorded]) -> None:
    found = [(recorded.side.process.rank, recorded.side.process.world) for recorded in ranks]
    assert found == [(rank, RANKS) for rank in range(RANKS)]


def test_every_call_of_every_rank_is_there(ranks: list[Recorded]) -> None:
    for recorded in ranks:
        assert len(recorded.named("Allreduce")) == ROUNDS
        assert len(recorded.named("Iallreduce")) == 2 * ROUNDS
        assert {event["status"] for event in recorded.events} == {"closed"}


def test_messages_name_their_sender(ranks: list[Recorded]) -> None:
    received = [event["peer"] for event in ranks[0].named("recv")]
    assert sorted(received) == [1] * ROUNDS + [2] * ROUNDS
    for recorded in ranks[1:]:
        assert [event["peer"] for event in recorded.named("send")] == [0] * ROUNDS


def test_reductions_are_matched_across_ranks(folder: Path) -> None:
    arrivals = tl.open(folder).arrivals
    assert arrivals.height == RANKS * 3 * ROUNDS
    everybody = [RANKS] * arrivals.height
    assert arrivals["arrived"].to_list() == arrivals["expected"].to_list() == everybody
