"""Device times of spans: events around each, asked about between later steps, never waited for.

A recording has met no device on a machine without, mostly one, made at first use.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracelens.schema.record import TIMED_ON_DEVICE
from tracelens.schema.vocabulary import DEVICE_TIMES, UNKNOWN_TIMES
from tracelens_instrument.core.clock import now
from tracelens_instrument.core.failures import reraise_if_handlers, short_repr, warn_once
from tracelens_instrument.core.registry import REGISTRY
from tracelens_instrument.core.spans import Span
from tracelens_instrument.device import timebase
from tracelens_instrument.device.timebase import Anchors

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.schema.side import ClockReading
    from tracelens_instrument.device.timebase import Anchor, DeviceClock, Event
    from tracelens_instrument.storage.side_file import Losses

__all__ = [
    "MOST_WAITING",
    "STOP_LIMIT_S",
    "DeviceTimes",
    "Devices",
    "Timing",
]


MOST_WAITING: Final = 4096
_ASK_AT: Final = 1024  # waiting, where no step ends that would ask
_NOT_YET: Final = 8  # answers like this in a row, after which the rest is not asked
_PAUSE_S: Final = 0.001

_names: Final = itertools.count(TIMED_ON_DEVICE + 1)
STOP_LIMIT_S: Final = 2.0
# In a forked child the parent's device cannot be used, not even to give its events back.
_ABANDONED: Final[list[Devices]] = []


@dataclass(slots=True)
class Timing:
    """A span under way: its events, the anchor to measure from, and by what name it is known.

    `host_ns` is when it began on the host, about; `stream` is the row of the thread table.
    """

    name: int
    host_ns: int
    anchor: Anchor
    begin: Event
    stream: int
    end: Event = None


class DeviceTimes:
    """The spans of one device in one recording."""

    def __init__(
        self,
        clock: DeviceClock,
        write: Callable[[ClockReading], None],
        lose: Callable[[], object],
        now: Callable[[], int],
    ) -> None:
        self._clock = clock
        self._lose = lose
        self._now = now
        self._record = Span(REGISTRY.definition("device times", "device", DEVICE_TIMES))
        self._rows: dict[object, int] = {}
        self._waiting: deque[Timing] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._anchors = Anchors(clock, write, now)

    def next_name(self) -> int | None:
        """Return a name for a span that begins on the host; None where nothing can be timed now."""
        return None if self._closed or not self._clock.may_ask() else next(_names)

    def begin(self, name: int, row: str | None) -> Timing | None:
        """Begin to time what the calling thread's stream does next; None where that cannot be."""
        recorded = None if self._closed else self._clock.record()
        if recorded is None:
            return None
        event, stream = recorded
        where = self._row(f"stream {stream}" if row is None else row)
        return Timing(name, self._now(), self._anchors.latest, event, where)

    def end(self, timing: Timing) -> None:
        """End where the calling thread's stream is now."""
        recorded = None if self._closed else self._clock.record()
        if recorded is None:
            return
        timing.end = recorded[0]
        self._waiting.append(timing)
        if len(self._waiting) >= _ASK_AT:
            self.ask()
        if len(self._waiting) > MOST_WAITING:
            with contextlib.suppress(IndexError):  # another thread has just written them all
                self._waiting.popleft()
                self._lose()

    def drop(self, timing: Timing) -> None:
        """Remove the span as if it had not begun."""
        self._clock.reuse(timing.begin)

    def at_step_boundary(self) -> None:
        """Write down what is known by now, and cast an anchor now and then."""
        self.ask()
        if self._clock.may_ask():
            self._anchors.cast_if_due()

    def ask(self) -> None:
        """Write down the times of all spans that the device has finished."""
        if not self._clock.may_ask() or not self._lock.acquire(blocking=False):
            return
        try:
            self._anchors.look()
            self._write_known()
        finally:
            self._lock.release()

    def finish(self, limit_s: float) -> None:
        """Wait a limited time for the device to finish; times not known then are lost, and counted."""
        if self._clock.may_ask():
            self._anchors.cast_last()
        until = time.monotonic() + limit_s
        while self._has_unknown_times and time.monotonic() < until:
            self.ask()
            if self._has_unknown_times:
                time.sleep(_PAUSE_S)
        self._closed = True
        for _ in self._waiting:
            self._lose()
        self._waiting.clear()

    @property
    def _has_unknown_times(self) -> bool:
        return bool(self._waiting) or self._anchors.latest.device_ns is None

    def _write_known(self) -> None:
        unfinished: list[Timing] = []
        for _ in range(len(self._waiting)):
            try:
                timing = self._waiting.popleft()
            except IndexError:
                break  # another thread has lost it
            if not self._write_if_known(timing):
                unfinished.append(timing)
                if len(unfinished) == _NOT_YET:
                    break
        self._waiting.extendleft(reversed(unfinished))

    def _write_if_known(self, timing: Timing) -> bool:
        """Write a span's times down if they are known."""
        clock, anchor_device_ns = self._clock, timing.anchor.device_ns
        if anchor_device_ns is None or not (
            clock.is_over(timing.end) and clock.is_over(timing.begin)
        ):
            return False
        begin_ns = anchor_device_ns + clock.between_ns(timing.anchor.event, timing.begin)
        length_ns = max(clock.between_ns(timing.begin, timing.end), 0)
        clock.reuse(timing.begin, timing.end)
        host_ns = timing.host_ns
        self._record.complete(
            host_ns, host_ns + length_ns, timing.stream, nbytes=begin_ns, request=timing.name
        )
        return True

    def _row(self, name: str) -> int:
        row = self._rows.get(name)
        if row is None:
            clock = self._clock
            row = self._rows[name] = REGISTRY.track(f"{clock.name} {name}", clock.index)
        return row


class Devices:
    """Device times by device. A device that fails is left alone from then on; training goes on."""

    def __init__(self, write: Callable[[ClockReading], None], losses: Losses) -> None:
        self._write = write
        self._losses = losses
        self._known: dict[int, DeviceTimes] = {}
        self._failed = False
        self._lock = threading.RLock()  # a signal handler may come in between

    def current(self) -> DeviceTimes | None:
        """Return the device that the calling thread uses; None without one."""
        if self._failed:
            return None
        clock = timebase.find()
        if clock is None:
            return None
        times = self._known.get(clock.index)
        if times is None and clock.may_ask():
            times = self._new_device(clock)
        return times

    def at_step_boundary(self) -> None:
        """Read the times that are due between two steps."""
        if self._failed or not self._known:
            return
        try:
            for times in list(self._known.values()):
                times.at_step_boundary()
        except Exception as error:  # noqa: BLE001 - a device fails in its own way; training goes on
            self.give_up(error)

    def finish(self) -> None:
        """Write down what can still be known, within a limit of time."""
        if self._failed:
            return
        try:
            for times in self._known.values():
                times.finish(STOP_LIMIT_S)
        except Exception as error:  # noqa: BLE001 - a device fails in its own way; training goes on
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Stop using devices, because one has failed."""
        reraise_if_handlers(error)
        self._failed = True
        warn_once(f"device times are not recorded any more ({short_repr(error)})", "device times")

    def abandon(self) -> None:
        """Release everything without touching a device, in a forked child."""
        self._failed = True
        _ABANDONED.append(self)

    def _new_device(self, clock: DeviceClock) -> DeviceTimes:
        with self._lock:
            times = self._known.get(clock.index)
            if times is None:
                lose = self._losses.counter(UNKNOWN_TIMES).add
                made = DeviceTimes(clock, self._write, lose, now)
                times = self._known.setdefault(clock.index, made)
            return times
