"""Clocks are tied together by pairs of readings and by round trips."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.launch.recording import read_one

import tracelens as tl
from tracelens.schema.side import ClockReading
from tracelens_instrument import recorder
from tracelens_instrument.core import clock

if TYPE_CHECKING:
    from pathlib import Path


def test_pair_is_read_at_one_moment() -> None:
    """Wall minus monotonic is the same whenever it is read, within the stated window."""
    reading, next_reading = clock.read_clocks(), clock.read_clocks()
    assert reading.wall_ns is not None
    assert next_reading.wall_ns is not None
    differs = (next_reading.wall_ns - next_reading.monotonic_ns) - (
        reading.wall_ns - reading.monotonic_ns
    )
    assert (
        abs(differs) <= reading.window_ns + next_reading.window_ns + 10**6
    )  # the wall clock is slewed
    assert abs(reading.wall_ns - time.time_ns()) < 10**10


def test_how_long_the_main_thread_ran_is_read_with_them() -> None:
    """Work of it is time on a core, as its own clock counts it, or waiting for one."""
    first_reading, begin_ns, clocked = (
        clock.read_clocks(),
        time.monotonic_ns(),
        time.thread_time_ns(),
    )
    while time.thread_time_ns() - clocked < 5 * 10**7:
        pass
    lasted, last_reading = time.monotonic_ns() - begin_ns, clock.read_clocks()
    readings = (
        first_reading.ran_ns,
        last_reading.ran_ns,
        first_reading.queued_ns,
        last_reading.queued_ns,
    )
    if None in readings:
        pytest.skip("this kernel does not count it")
    ran, again, queued, more = (one or 0 for one in readings)
    assert 4 * 10**7 <= again - ran <= lasted + 10**7
    assert 0 <= more - queued <= lasted + 10**7


def test_what_the_kernel_does_not_count_is_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the file, or with what is no such file."""
    for text in (None, "", "0 0 0", "a b c", "1 2"):
        file = tmp_path / "schedstat"
        if text is not None:
            file.write_text(text)
        monkeypatch.setattr(clock, "_SCHEDULER_STATISTICS", file)
        reading = clock.read_clocks()
        assert (reading.ran_ns, reading.queued_ns) == (None, None)


class Wire:
    """A peer whose clock is ahead, behind a wire with delays in both directions."""

    def __init__(self, ahead: int, delays: list[tuple[int, int]]) -> None:
        self.ahead = ahead
        self.delays = iter(delays)
        self.time = 1_000_000
        self.answer = 0

    def read_time(self) -> int:
        return self.time

    def send(self, _moment: int) -> None:
        there, self.back = next(self.delays)
        self.time += there
        self.answer = self.time + self.ahead

    def receive(self) -> int:
        self.time += self.back
        return self.answer


@given(
    ahead=st.integers(-(10**15), 10**15),
    delays=st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=20
    ),
)
def test_round_trips_bound_the_offset(ahead: int, delays: list[tuple[int, int]]) -> None:
    """The offset is wrong by half the smallest round trip at most."""
    wire = Wire(ahead, delays)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "now", wire.read_time)
        offset, round_trip = clock.ping_pong(wire.send, wire.receive, rounds=len(delays))
    assert round_trip == min(there + back for there, back in delays)
    assert abs(offset - -ahead) <= round_trip / 2 + 1


def test_readings_of_hooks_are_kept(trace: Path) -> None:
    """A hook's reading is stored next to the recorder's own pairs at start and end."""
    reading = ClockReading("ping_pong", 5, 100, peer=1, offset_ns=-7)
    recorder.clock_reading(reading)
    tl.stop()
    clocks = read_one(trace).side.clocks
    assert [row.method for row in clocks] == ["local", "ping_pong", "local"]
    assert clocks[1] == reading


def test_reading_while_off_is_no_error() -> None:
    """A hook need not ask whether anything records."""
    recorder.clock_reading(ClockReading("local", 1, 1, wall_ns=1))
