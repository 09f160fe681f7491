"""Clocks are compared once per clock, and the offset is this process's clock minus the first one's."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from queue import Queue
from typing import TYPE_CHECKING, Any, Self

import pytest
from support.launch.patience import PATIENCE_S

from tracelens_instrument import recorder
from tracelens_instrument.core import clock
from tracelens_instrument.hooks.mpi import clock_offsets

if TYPE_CHECKING:
    from tracelens.schema.side import ClockReading

AHEAD_NS = {"a": 0, "b": 5_000_000_000, "c": -7_000_000_000}
TICK_NS = 1_000


class Side(threading.local):
    domain = "a"


class FakeComm:
    """Connects the threads of a test as ranks."""

    def __init__(self, rank: int, domains: Sequence[str], mail: dict[tuple[int, int], Any]) -> None:
        self.rank, self._domains, self._mail = rank, domains, mail
        self.freed = False

    def allgather(self, _domain: str) -> list[str]:
        return list(self._domains)

    def Dup(self) -> Self:  # noqa: N802 - MPI's
        return self

    def Free(self) -> None:  # noqa: N802 - MPI's
        self.freed = True

    def Send(self, message: array[int], to: int) -> None:  # noqa: N802 - MPI's
        self._mail[self.rank, to].put(message[0])

    def Recv(self, message: array[int], source: int) -> None:  # noqa: N802 - MPI's
        message[0] = self._mail[source, self.rank].get(timeout=PATIENCE_S)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[ClockReading]:
    """Give each thread a clock of its own, which ticks when any is read; collect the readings."""
    side, ticks, lock = Side(), iter(range(0, 10**9, TICK_NS)), threading.Lock()
    clock_readings: list[ClockReading] = []

    def read_ticks() -> int:
        with lock:
            return next(ticks) + AHEAD_NS[side.domain]

    for module in (clock, clock_offsets):
        monkeypatch.setattr(module, "now", read_ticks)
    monkeypatch.setattr(clock_offsets, "PENDING_READINGS", [])
    monkeypatch.setattr(recorder, "on_stop", lambda _write: None)
    monkeypatch.setattr(recorder, "clock_reading", clock_readings.append)
    monkeypatch.setattr(clock_offsets, "clock_domain", lambda: side.domain)
    monkeypatch.setattr(f"{__name__}.SIDE", side, raising=False)
    return clock_readings


SIDE = Side()


def _run(domains: Sequence[str]) -> list[FakeComm]:
    ranks = range(len(domains))
    mail: dict[tuple[int, int], Any] = {(a, b): Queue() for a in ranks for b in ranks}
    comms = [FakeComm(rank, domains, mail) for rank in ranks]

    def as_rank(comm: FakeComm) -> None:
        SIDE.domain = domains[comm.rank]
        clock_offsets.compare_clocks(comm, [10 + rank for rank in ranks])  # type: ignore[arg-type] # a fake

    threads = [threading.Thread(target=as_rank, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return comms


def test_a_clock_that_is_ahead_has_a_positive_offset(
    readings: list[ClockReading],
) -> None:
    comms = _run(["a", "a", "b", "c", "b"])
    clock_offsets.write_pending()
    expected = [AHEAD_NS["c"], AHEAD_NS["b"]]
    found = sorted((reading.offset_ns or 0, reading.window_ns, reading) for reading in readings)
    for (offset_ns, _, reading), ahead_ns in zip(found, expected, strict=True):
        assert (reading.method, reading.peer) == ("ping_pong", 10)
        assert abs(offset_ns - ahead_ns) <= reading.window_ns / 2
        assert reading.window_ns <= 50 * TICK_NS
    assert all(comm.freed for comm in comms)


def test_with_one_clock_nothing_is_sent(readings: list[ClockReading]) -> None:
    comms = _run(["a", "a", "a"])
    clock_offsets.write_pending()
    assert not readings
    assert not any(comm.freed for comm in comms)


def test_the_first_of_each_other_clock_is_asked() -> None:
    assert clock_offsets.first_of_each(["b", "a", "b", "c", "a"]) == [1, 3]
