"""For how long the ranks of this host have waited for a core, as the kernel counts it."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from tracelens.watch.processes import is_on_this_host, read_queued_ns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.watch.job import JobProcess

__all__ = ["CoreWaits"]

# readings: of one a look, a step of an hour is still between two of them [policy]
MAX_READINGS_KEPT: Final = 3600


class _Readings:
    """The sums of one process: when, and for how long its threads have waited for cores so far, ns."""

    def __init__(self) -> None:
        self.sums: deque[tuple[int, int]] = deque(maxlen=MAX_READINGS_KEPT)
        self._queued_ns_by_thread: dict[int, int] = {}

    def add(self, now_ns: int, queued_ns_by_thread: dict[int, int]) -> None:
        """Add a reading; what a thread has waited since the last one counts, also if others ended."""
        known = self._queued_ns_by_thread
        extra_ns = sum(
            max(queued_ns - known.get(thread, 0), 0)
            for thread, queued_ns in queued_ns_by_thread.items()
        )
        self._queued_ns_by_thread = queued_ns_by_thread
        last_sum_ns = self.sums[-1][1] if self.sums else 0
        self.sums.append((now_ns, last_sum_ns + extra_ns))


class CoreWaits:
    """Reads the waits of all threads of each rank at each look."""

    def __init__(self) -> None:
        self._readings: dict[tuple[str, int, int], _Readings] = {}

    def look(self, processes: Mapping[int, JobProcess]) -> None:
        """Read how long the processes of this host have waited; forget those that have ended."""
        now_ns = time.time_ns()
        running = [member for member in processes.values() if not member.is_over]
        identities = {member.identity for member in running}
        self._readings = {
            identity: readings
            for identity, readings in self._readings.items()
            if identity in identities
        }
        for member in running:
            if is_on_this_host(member.process):
                queued_ns_by_thread = read_queued_ns(member.process.pid)
                if queued_ns_by_thread:
                    readings = self._readings.setdefault(member.identity, _Readings())
                    readings.add(now_ns, queued_ns_by_thread)

    def measure_ns(self, member: JobProcess, since_monotonic_ns: int) -> float:
        """Return for how long all threads of a rank have waited for cores since then, at most.

        It is infinite where that is not known, as before the first look. On another host nothing is
        read: its ranks are taken not to wait.

        Args:
            member: The process of the rank.
            since_monotonic_ns: A time of its clock.
        """
        readings = self._readings.get(member.identity)
        if readings is None:
            return math.inf if is_on_this_host(member.process) else 0.0
        since_ns = member.to_wall_ns(since_monotonic_ns)
        for at_ns, sum_ns in reversed(readings.sums):
            if at_ns <= since_ns:
                return readings.sums[-1][1] - sum_ns
        return math.inf
