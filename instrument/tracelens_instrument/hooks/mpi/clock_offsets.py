"""Clock offsets between hosts, measured by messages when a communicator is attached."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from tracelens.schema.host import clock_domain
from tracelens.schema.side import ClockReading
from tracelens_instrument import recorder
from tracelens_instrument.core.clock import now, ping_pong

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpi4py import MPI

__all__ = ["PENDING_READINGS", "compare_clocks", "first_of_each", "write_pending"]

PENDING_READINGS: Final[list[ClockReading]] = []
_ROUND_COUNT: Final = 50


def compare_clocks(comm: MPI.Intracomm, global_ranks: Sequence[int]) -> None:
    """Measure the clock of each host against that of the first; all of `comm` must call it.

    `comm` must not be one that records. `global_ranks` are those of its members, by rank in it.
    """
    other_hosts_ranks = first_of_each(comm.allgather(clock_domain()))
    if not other_hosts_ranks:
        return
    private_comm = comm.Dup()  # so that our messages never meet those of the program
    try:
        for rank in other_hosts_ranks:
            if private_comm.rank == rank:
                _measure_offset(private_comm, global_ranks[0])
            elif private_comm.rank == 0:
                _answer_questions(private_comm, rank)
    finally:
        private_comm.Free()


def first_of_each(domains: Sequence[str]) -> list[int]:
    """Return the first rank of each clock, without that of rank 0."""
    return [rank for rank, name in enumerate(domains) if domains.index(name) == rank][1:]


def _measure_offset(comm: MPI.Intracomm, peer_global_rank: int) -> None:
    """Measure this clock against that of rank 0 of `comm`, by its global rank; written down later."""
    answer = array("q", [0])  # ns of rank 0's clock

    def receive() -> int:
        comm.Recv(answer, 0)
        return answer[0]

    offset_ns, round_trip_ns = ping_pong(
        lambda own_ns: comm.Send(array("q", [own_ns]), 0), receive, _ROUND_COUNT
    )
    reading = ClockReading(
        "ping_pong", now(), window_ns=round_trip_ns, peer=peer_global_rank, offset_ns=offset_ns
    )
    PENDING_READINGS.append(reading)
    recorder.on_stop(write_pending)


def write_pending() -> None:
    """Write down what was measured while the recording still waited for its first event.

    To open it for this would be too early: the program may still say which role it has.
    """
    while PENDING_READINGS:
        recorder.clock_reading(PENDING_READINGS.pop())


def _answer_questions(comm: MPI.Intracomm, rank: int) -> None:
    question = array("q", [0])
    for _ in range(_ROUND_COUNT):
        comm.Recv(question, rank)
        comm.Send(array("q", [now()]), rank)
