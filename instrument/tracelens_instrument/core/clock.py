"""Clocks: the one that times events, and readings that tie it to other clocks."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tracelens.schema.side import ClockReading
from tracelens_instrument.core.backend import NATIVE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

__all__ = ["now", "ping_pong", "read_clocks"]

_TRIES = 50
_SOURCE: Final = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_SCHEDULED: Final = Path("/proc/self/schedstat")  # of the main thread


def _counts_ticks() -> bool:
    """Return True if the kernel finds the processor's counter good enough for its own clock."""
    try:
        return _SOURCE.read_bytes().strip() == b"tsc"
    except OSError:
        return False


if TYPE_CHECKING or not NATIVE:
    now = time.monotonic_ns
else:
    from tracelens_instrument._native import now, use_counter

    def _choose_source() -> None:
        use_counter(_counts_ticks())

    _choose_source()
    # A child may be born into another time namespace.
    os.register_at_fork(after_in_child=_choose_source)


def read_clocks() -> ClockReading:
    """Read the monotonic and the wall clock at the same moment: the tightest of many tries.

    And for how long the main thread has run so far, and waited for a core.
    """
    window, before, wall = min(_bracketed_wall() for _ in range(_TRIES))
    ran, queued = _scheduled()
    at = before + window // 2
    return ClockReading("local", at, window, wall_ns=wall, ran_ns=ran, queued_ns=queued)


def _scheduled() -> tuple[int | None, int | None]:
    """Return the main thread's time on a core and in run queues; None where neither is counted."""
    try:
        ran, queued, _ = map(int, _SCHEDULED.read_bytes().split())
    except (OSError, ValueError):
        return None, None
    return (ran, queued) if ran else (None, None)


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
