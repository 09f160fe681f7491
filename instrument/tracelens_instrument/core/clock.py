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

_TRY_COUNT = 50
_SOURCE: Final = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_SCHEDULER_STATISTICS: Final = Path("/proc/self/schedstat")  # of the main thread


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
    """Read the monotonic and the wall clock at the same moment: the try with the shortest window.

    And for how long the main thread has run so far, and waited for a core.
    """
    window_ns, window_begin_ns, wall_ns = min(_time_wall_reading() for _ in range(_TRY_COUNT))
    ran_ns, queued_ns = _read_scheduled_ns()
    monotonic_ns = window_begin_ns + window_ns // 2
    return ClockReading(
        "local", monotonic_ns, window_ns, wall_ns=wall_ns, ran_ns=ran_ns, queued_ns=queued_ns
    )


def _read_scheduled_ns() -> tuple[int | None, int | None]:
    """Return the main thread's ns on a core and in run queues; None where neither is counted."""
    try:
        ran_ns, queued_ns, _ = map(int, _SCHEDULER_STATISTICS.read_bytes().split())
    except (OSError, ValueError):
        return None, None
    return (ran_ns, queued_ns) if ran_ns else (None, None)


def _time_wall_reading() -> tuple[int, int, int]:
    """Return (window, monotonic time of its begin, Unix time read within the window), ns."""
    before_ns = now()
    wall_ns = time.time_ns()
    return now() - before_ns, before_ns, wall_ns


def ping_pong(
    send: Callable[[int], object], receive: Callable[[], int], rounds: int = 20
) -> tuple[int, int]:
    """Measure this clock minus a peer's by round trips; return offset and smallest round trip, ns.

    Each round sends this clock to the peer by `send`; the peer answers with its own clock's
    nanoseconds, which `receive` returns. The offset is wrong by half the round trip at most.
    """
    round_trip_ns, offset_ns = min(
        _measure_round_trip(send, receive) for _ in range(max(rounds, 1))
    )
    return offset_ns, round_trip_ns


def _measure_round_trip(
    send: Callable[[int], object], receive: Callable[[], int]
) -> tuple[int, int]:
    """Return (round trip, this clock minus the peer's in the middle of it), ns.

    `send` sends our time to the peer, `receive` waits for the peer's.
    """
    sent_ns = now()
    send(sent_ns)
    peer_ns = receive()
    returned_ns = now()
    return returned_ns - sent_ns, (sent_ns + returned_ns) // 2 - peer_ns
