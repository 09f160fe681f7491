"""A simulated device: streams that work off what is queued on them, and a clock of its own.

A simulation with its own ground truth, for the recorder's logic; it says nothing of real hardware.
Every moment is known in true time, which is also the host's clock; it passes only where something takes
time: a call, or `work`. What the device tells has the precision that CUDA has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

APART = -1


@dataclass
class SimulatedEvent:
    """An event: when the device comes past it, in true time; and what kind of question it got."""

    at_ns: int
    asked: int = 0


@dataclass
class SimulatedDevice:
    """A device whose clock is off by `ahead_ns` and drifts; its work begins `latency_ns` after the call.

    `stream` is the calling thread's. `apart_ns` is how late the stream apart is, call by call.
    """

    latency_ns: int = 5_000
    call_ns: int = 1_000
    ahead_ns: int = 0
    drift_ppm: float = 0.0
    host_ns: int = 10**12
    stream: int = 0
    captures: bool = False
    device_index: int = 0
    clock: Callable[[], int] | None = None
    apart_ns: Callable[[], int] = lambda: 0
    free: dict[int, int] = field(default_factory=dict)
    events: list[SimulatedEvent] = field(default_factory=list)
    reused: int = 0

    @property
    def device_name(self) -> str:
        return f"simulated:{self.device_index}"

    def now(self) -> int:
        """Read the host's clock; without one given, that takes 50 ns."""
        if self.clock is not None:
            return self.clock()
        self.host_ns += 50
        return self.host_ns

    def work(self, ns: int) -> None:
        """Let the host do something else."""
        self.host_ns += ns

    def queue(self, ns: int) -> tuple[int, int]:
        """Queue work on the current stream; return when it will run, in true time."""
        begin = self._reached(self.stream)
        self.free[self.stream] = begin + ns
        return begin, begin + ns

    def wait_for(self, other: int) -> None:
        """Let the current stream wait for what is queued on another."""
        self.free[self.stream] = max(self._reached(self.stream), self.free.get(other, 0))

    def shown(self, true_ns: int) -> float:
        """Return what the device's clock shows at a moment."""
        return true_ns * (1 + self.drift_ppm * 1e-6) + self.ahead_ns

    # -- as tracelens_instrument.device.timebase.DeviceClock ------------------------------------------

    def record_event(self) -> tuple[SimulatedEvent, int] | None:
        if self.captures:
            return None
        return self._event(self._reached(self.stream)), self.stream

    def record_event_apart(self) -> SimulatedEvent:
        return self._event(self._reached(APART) + self.apart_ns())

    def can_query(self) -> bool:
        return not self.captures

    def is_over(self, event: SimulatedEvent) -> bool:
        assert not self.captures, "asking would break the capture"
        self.work(self.call_ns)
        event.asked += 1
        return self.now() >= event.at_ns

    def elapsed_ns_between(self, first: SimulatedEvent, second: SimulatedEvent) -> int:
        now = self.now()
        assert max(first.at_ns, second.at_ns) <= now, "the device has not come past both"
        ms = np.float32((self.shown(second.at_ns) - self.shown(first.at_ns)) / 1e6)
        return round(float(ms) * 1e6)

    def reuse_events(self, *events: SimulatedEvent) -> None:
        self.reused += len(events)

    def _event(self, at_ns: int) -> SimulatedEvent:
        self.work(self.call_ns)
        self.events.append(SimulatedEvent(at_ns))
        return self.events[-1]

    def _reached(self, stream: int) -> int:
        return max(self.free.get(stream, 0), self.now() + self.latency_ns)
