"""Ranks whose clocks are 100 s apart measure that, and are brought together when the trace is opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from support.launch.mpi import run_apart
from support.launch.recording import Recorded, read_all
from support.launch.shifted import AHEAD_S, SHIFT, skip_if_clocks_cannot_be_shifted

import tracelens as tl

if TYPE_CHECKING:
    from tracelens.schema.side import ClockReading

pytestmark = [pytest.mark.end_to_end, pytest.mark.root]

SECOND_NS = 1_000_000_000
ROUNDS = 30

PROGRAM = f"""
for number in range({ROUNDS}):
    with tl.step(number):
        comm.Allreduce(MPI.IN_PLACE, np.zeros(8))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    skip_if_clocks_cannot_be_shifted()
    folder = tmp_path_factory.mktemp("shifted") / "trace"
    run_apart(PROGRAM, folder, [[], SHIFT])
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[Recorded]:
    return read_all(folder)


def test_the_later_rank_reads_how_far_it_is_ahead(ranks: list[Recorded]) -> None:
    first, second = ranks
    (reading,) = _ping_pongs(second)
    assert not _ping_pongs(first)
    assert reading.peer == 0
    assert reading.offset_ns is not None
    assert abs(reading.offset_ns - AHEAD_S * SECOND_NS) <= reading.window_ns / 2 + 1


def test_without_alignment_nothing_fits(ranks: list[Recorded]) -> None:
    first, second = (recorded.named("Allreduce")[0] for recorded in ranks)
    assert second["start_ns"] - first["start_ns"] > AHEAD_S * SECOND_NS / 2


@pytest.mark.slow
def test_opened_all_leave_a_collective_together(folder: Path) -> None:
    trace = tl.open(folder)
    ends = pl.col("end_ns")
    spread = (
        trace.events.filter(pl.col("name") == "Allreduce")
        .group_by("seq")
        .agg(ranks=pl.len(), apart=ends.max() - ends.min())
        .collect()
    )
    assert trace.alignment.method == "collective_exits"
    assert spread["ranks"].to_list() == [2] * ROUNDS
    assert spread["apart"].to_numpy().max() < AHEAD_S * SECOND_NS / 2


@pytest.mark.slow
def test_without_collectives_the_reading_aligns(tmp_path: Path) -> None:
    """No message is then received before it was sent."""
    skip_if_clocks_cannot_be_shifted()
    program = f"""
    other = 1 - comm.rank
    for number in range({ROUNDS}):
        with tl.step(number):
            comm.Sendrecv(np.zeros(8), other, 0, np.zeros(8), other, 0)
    """
    run_apart(program, tmp_path / "trace", [[], SHIFT])
    (window_ns,) = [c.window_ns for c in _ping_pongs(read_all(tmp_path / "trace")[1])]
    trace = tl.open(tmp_path / "trace")
    assert trace.alignment.method == "ping_pong"
    events = trace.events.collect()
    sent = events.filter(pl.col("op") == "send").select("rank", "seq", "start_ns")
    received = events.filter(pl.col("op") == "recv").select("peer", "seq", "end_ns")
    pairs = sent.join(received, left_on=["rank", "seq"], right_on=["peer", "seq"])
    assert pairs.height == 2 * ROUNDS
    took = pairs["end_ns"] - pairs["start_ns"]
    assert took.to_numpy().min() > -window_ns
    assert took.to_numpy().max() < AHEAD_S * SECOND_NS / 2


def _ping_pongs(recorded: Recorded) -> list[ClockReading]:
    return [reading for reading in recorded.side.clocks if reading.method == "ping_pong"]


@pytest.mark.slow
def test_the_program_can_still_say_its_role(tmp_path: Path) -> None:
    """Measuring clocks, which happens first, does not open the recording."""
    skip_if_clocks_cannot_be_shifted()
    program = """
    tl.start(role="ps" if comm.rank == 1 else "worker", shard=comm.rank)
    tl.instant("ready")
    """
    run_apart(program, tmp_path / "trace", [[], SHIFT])
    server, worker = read_all(tmp_path / "trace")
    assert (server.side.process.role, worker.side.process.role) == ("ps", "worker")
    assert len(_ping_pongs(server)) == 1
