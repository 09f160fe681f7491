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

__all__ = ["MAX_WAITING_SPANS", "STOP_LIMIT_S", "DeviceTimer", "Devices", "Timing"]

MAX_WAITING_SPANS: Final = 4096
_WAITING_SPANS_BEFORE_ASKING: Final = 1024  # waiting, where no step ends that would ask
_MAX_UNFINISHED_IN_A_ROW: Final = 8  # answers like this in a row, after which the rest is not asked
_PAUSE_S: Final = 0.001

_requests: Final = itertools.count(TIMED_ON_DEVICE + 1)
STOP_LIMIT_S: Final = 2.0
# In a forked child the parent's device cannot be used, not even to give its events back.
_ABANDONED: Final[list[Devices]] = []


@dataclass(slots=True)
class Timing:
    """A span under way: its events on the device, and the anchor to measure their times from."""

    request_id: int  # also of its span on the host
    host_begin_ns: int  # about
    anchor: Anchor
    begin_event: Event
    track: int
    end_event: Event = None


class DeviceTimer:
    """The spans of one device in one recording."""

    def __init__(
        self,
        clock: DeviceClock,
        write_reading: Callable[[ClockReading], None],
        count_lost: Callable[[], object],
        read_now_ns: Callable[[], int],
    ) -> None:
        """Prepare to take times of the clock's device.

        Args:
            clock: The clock of the device.
            write_reading: Records a reading of both clocks.
            count_lost: Called for each operation whose times are lost.
            read_now_ns: Reads the clock of the host.
        """
        self._clock = clock
        self._count_lost = count_lost
        self._read_now_ns = read_now_ns
        self._time_span = Span(REGISTRY.definition_id("device times", "device", DEVICE_TIMES))
        self._tracks: dict[object, int] = {}
        self._waiting_timings: deque[Timing] = deque()
        self._lock = threading.Lock()
        self._is_closed = False
        self._anchors = Anchors(clock, write_reading, read_now_ns)

    def next_request(self) -> int | None:
        """Return the number of a span that begins on the host; None if it cannot be timed."""
        return None if self._is_closed or not self._clock.can_query() else next(_requests)

    def begin(self, request: int, track_name: str | None) -> Timing | None:
        """Begin to time what the thread's stream does next, for this request; None if not timed."""
        event_and_stream = None if self._is_closed else self._clock.record_event()
        if event_and_stream is None:
            return None
        event, stream = event_and_stream
        track = self._track_of(f"stream {stream}" if track_name is None else track_name)
        return Timing(request, self._read_now_ns(), self._anchors.latest_anchor, event, track)

    def end(self, timing: Timing) -> None:
        """End a span's timing where the thread's stream is now; its times are written once known."""
        event_and_stream = None if self._is_closed else self._clock.record_event()
        if event_and_stream is None:
            return
        timing.end_event, _stream = event_and_stream
        self._waiting_timings.append(timing)
        if len(self._waiting_timings) >= _WAITING_SPANS_BEFORE_ASKING:
            self.ask_for_times()
        if len(self._waiting_timings) > MAX_WAITING_SPANS:
            with contextlib.suppress(IndexError):  # another thread has just written them all
                self._waiting_timings.popleft()
                self._count_lost()

    def drop_timing(self, timing: Timing) -> None:
        """Remove the span as if it had not begun."""
        self._clock.reuse_events(timing.begin_event)

    def at_step_boundary(self) -> None:
        """Write down what is known by now, and cast an anchor now and then."""
        self.ask_for_times()
        if self._clock.can_query():
            self._anchors.cast_if_due()

    def ask_for_times(self) -> None:
        """Write down the times of all spans that the device has finished."""
        if not self._clock.can_query() or not self._lock.acquire(blocking=False):
            return
        try:
            self._anchors.look()
            self._write_known_times()
        finally:
            self._lock.release()

    def finish(self, limit_s: float) -> None:
        """Wait a limited time for the device to finish; times not known then are lost, and counted."""
        if self._clock.can_query():
            self._anchors.cast_last()
        deadline_s = time.monotonic() + limit_s
        while self._has_unknown_times and time.monotonic() < deadline_s:
            self.ask_for_times()
            if self._has_unknown_times:
                time.sleep(_PAUSE_S)
        self._is_closed = True
        for _ in self._waiting_timings:
            self._count_lost()
        self._waiting_timings.clear()

    @property
    def _has_unknown_times(self) -> bool:
        return bool(self._waiting_timings) or self._anchors.latest_anchor.device_ns is None

    def _write_known_times(self) -> None:
        """Write down the known times of waiting spans; the unfinished wait on in their order."""
        unfinished: list[Timing] = []
        for _ in range(len(self._waiting_timings)):
            try:
                timing = self._waiting_timings.popleft()
            except IndexError:
                break  # another thread has lost it
            if not self._write_if_known(timing):
                unfinished.append(timing)
                if len(unfinished) == _MAX_UNFINISHED_IN_A_ROW:
                    break
        self._waiting_timings.extendleft(reversed(unfinished))

    def _write_if_known(self, timing: Timing) -> bool:
        """Write a span's times down if the device has passed both its events; return True then.

        The record has the host's begin, the device's duration, and as `nbytes` the device's begin, ns.
        """
        clock, anchor_device_ns = self._clock, timing.anchor.device_ns
        if anchor_device_ns is None or not (
            clock.is_over(timing.end_event) and clock.is_over(timing.begin_event)
        ):
            return False
        begin_event, end_event = timing.begin_event, timing.end_event
        device_begin_ns = anchor_device_ns + clock.elapsed_ns_between(
            timing.anchor.event, begin_event
        )
        duration_ns = max(clock.elapsed_ns_between(begin_event, end_event), 0)
        clock.reuse_events(begin_event, end_event)
        self._time_span.complete(
            timing.host_begin_ns,
            timing.host_begin_ns + duration_ns,
            timing.track,
            nbytes=device_begin_ns,
            request=timing.request_id,
        )
        return True

    def _track_of(self, name: str) -> int:
        track = self._tracks.get(name)
        if track is None:
            clock = self._clock
            track = self._tracks[name] = REGISTRY.track(
                f"{clock.device_name} {name}", clock.device_index
            )
        return track


class Devices:
    """Device times by device. A device that fails is left alone from then on; training goes on."""

    def __init__(self, write_reading: Callable[[ClockReading], None], losses: Losses) -> None:
        self._write_reading = write_reading
        self._losses = losses
        self._timer_by_device: dict[int, DeviceTimer] = {}
        self._has_failed = False
        self._lock = threading.RLock()  # a signal handler may come in between

    def current_timer(self) -> DeviceTimer | None:
        """Return the timer of the device that the calling thread uses; None if it cannot be timed."""
        if self._has_failed:
            return None
        clock = timebase.find()
        if clock is None:
            return None
        timer = self._timer_by_device.get(clock.device_index)
        if timer is None and clock.can_query():
            timer = self._make_timer(clock)
        return timer

    def at_step_boundary(self) -> None:
        """Read the times that are due between two steps."""
        if self._has_failed or not self._timer_by_device:
            return
        try:
            for timer in list(self._timer_by_device.values()):
                timer.at_step_boundary()
        except Exception as error:  # noqa: BLE001 - a device fails in its own way; training goes on
            self.give_up(error)

    def finish(self) -> None:
        """Write down what can still be known, within a limit of time."""
        if self._has_failed:
            return
        try:
            for timer in self._timer_by_device.values():
                timer.finish(STOP_LIMIT_S)
        except Exception as error:  # noqa: BLE001 - a device fails in its own way; training goes on
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Stop using devices, because one has failed."""
        reraise_if_handlers(error)
        self._has_failed = True
        warn_once(f"device times are not recorded any more ({short_repr(error)})", "device times")

    def abandon(self) -> None:
        """Release everything without touching a device, in a forked child."""
        self._has_failed = True
        _ABANDONED.append(self)

    def _make_timer(self, clock: DeviceClock) -> DeviceTimer:
        """Return the timer of a device that had none; of several threads the first makes it."""
        with self._lock:
            timer = self._timer_by_device.get(clock.device_index)
            if timer is None:
                count_lost = self._losses.counter(UNKNOWN_TIMES).add
                new_timer = DeviceTimer(clock, self._write_reading, count_lost, now)
                timer = self._timer_by_device.setdefault(clock.device_index, new_timer)
            return timer
