"""Clocks: the one that times events, and readings that tie it to other clocks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tracelens.schema.side import ClockReading

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["now", "ping_pong", "read_clocks"]

now = time.monotonic_ns

_TRIES = 50


def read_clocks() -> ClockReading:
    """Read the monotonic and the wall clock at the same moment: the tightest of many tries."""
    window, before, wall = min(_bracketed_wall() for _ in range(_TRIES))
    return ClockReading("local", before + window // 2, window, wall_ns=wall)


def _bracketed_wall() -> tuple[int, int, int]:
    before = now()
    wall = time.time_ns()
    return now() - before, before, wall


def ping_pong(
    send: Callable[[int], object], receive: Callable[[], int], rounds: int = 20
) -> tuple[int, int]:
    """Measure this clock minus a peer's by round trips; return (offset_ns, smallest round trip).

    Each round sends this clock to the peer by `send`; the peer answers with its own clock's
    nanoseconds, which `receive` returns. The offset is wrong by half the round trip at most.
    """
    round_trip, offset = min(_round(send, receive) for _ in range(max(rounds, 1)))
    return offset, round_trip


def _round(send: Callable[[int], object], receive: Callable[[], int]) -> tuple[int, int]:
    sent = now()
    send(sent)
    theirs = receive()
    returned = now()
    return returned - sent, (sent + returned) // 2 - theirs
