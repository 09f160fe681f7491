"""A device's clock: its interface, the clock in use, and its tie to the host's clock.

The recorder never waits for a device: it records events on streams, and asks later whether they are
over. CUDA is what there is so far (`cuda`).

Anchors are events whose moment is known on the device's clock and, within a window, on the host's. A
device tells only the time between two events, as a 32-bit float of milliseconds: to half a
microsecond up to eight seconds, and ever worse beyond. So each anchor is measured from the one
before, and each span from the anchor before it. The device's clock is set to the host's at the first
one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from tracelens.schema.side import ClockReading

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ANCHOR_EVERY_NS", "Anchor", "Anchors", "DeviceClock", "Event", "find"]


Event: TypeAlias = Any  # the device's own kind of object; only its clock looks inside
ANCHOR_EVERY_NS: Final = 5 * 10**9
# A device that computes comes past within 45 us (measured on an H200), one that is held up does not.
_LOOK_NS: Final = 100_000
_AGAIN_NS: Final = 250_000_000  # after one that was not seen in time
_TRY_COUNT: Final = 3


class DeviceClock(Protocol):
    """One device of this process. No method waits for it."""

    @property
    def device_index(self) -> int:
        """Its number in this process."""

    @property
    def device_name(self) -> str:
        """What it is called, such as ``cuda:0``."""

    def record_event(self) -> tuple[Event, int] | None:
        """Record an event on the calling thread's stream; also say which stream that is.

        None where nothing may be recorded, because the stream's work is captured to be repeated.
        """

    def record_event_apart(self) -> Event:
        """Record an event on a stream on which nothing else runs, so that it is over soon."""

    def can_query(self) -> bool:
        """Return True if events may be asked about now."""

    def is_over(self, event: Event) -> bool:
        """Return True if the device has come past an event."""

    def elapsed_ns_between(self, first: Event, second: Event) -> int:
        """Return the device's time between two events that are over, nanoseconds."""

    def reuse_events(self, *events: Event) -> None:
        """Return events to the pool."""


def find() -> DeviceClock | None:
    """Return the clock of the device that the calling thread uses; None without one.

    Never loads a framework, nor wakes up a device: only what the training already uses counts.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    from tracelens_instrument.device.cuda import current  # noqa: PLC0415 - it loads PyTorch

    return current()


@dataclass
class Anchor:
    """An event, recorded after `host_before_ns` of the host and seen to be over at `host_seen_ns`.

    `device_ns` is its time on the device's clock, None until that is known.
    """

    event: Event
    host_before_ns: int
    host_seen_ns: int | None = None
    device_ns: int | None = None

    @property
    def window_ns(self) -> int:
        """How sure its moment on the host's clock is."""
        assert self.host_seen_ns is not None  # it has been seen
        return self.host_seen_ns - self.host_before_ns


class Anchors:
    """The anchors of a device; `latest_anchor` is the one to measure from."""

    def __init__(
        self,
        clock: DeviceClock,
        write_reading: Callable[[ClockReading], None],
        read_now_ns: Callable[[], int],
    ) -> None:
        """Read the clocks of device and host (by `read_now_ns`); `write_reading` records both."""
        self._clock = clock
        self._write_reading = write_reading
        self._read_now_ns = read_now_ns
        self._last_seen: Anchor | None = None
        self.latest_anchor = self._cast_sharpest()
        self.look()

    def cast_if_due(self) -> None:
        """Cast an anchor, unless the last is young and sharp, or still on its way."""
        latest = self.latest_anchor
        if latest.device_ns is not None:
            wait_ns = _AGAIN_NS if latest.window_ns > _LOOK_NS else ANCHOR_EVERY_NS
            if self._read_now_ns() >= latest.host_before_ns + wait_ns:
                self._cast_latest()

    def cast_last(self) -> None:
        """Cast an anchor, unless the last is still on its way: spans are measured from it."""
        self.look()
        if self.latest_anchor.device_ns is not None:
            self._cast_latest()

    def look(self) -> None:
        """Write down a reading of both clocks if the device has passed the latest anchor by now.

        An anchor is an event with its time on the device's clock, and a window for it on the host's.
        """
        anchor = self.latest_anchor
        if anchor.device_ns is not None or not self._wait_until_seen(anchor):
            return
        host_middle_ns = anchor.host_before_ns + anchor.window_ns // 2
        earlier_anchor = self._last_seen
        if earlier_anchor is None or earlier_anchor.device_ns is None:
            anchor.device_ns = host_middle_ns  # the first one: the device's clock is set by it
        else:
            anchor.device_ns = earlier_anchor.device_ns + self._clock.elapsed_ns_between(
                earlier_anchor.event, anchor.event
            )
        self._last_seen = anchor
        self._write_reading(
            ClockReading(
                method="device",
                monotonic_ns=host_middle_ns,
                window_ns=anchor.window_ns,
                offset_ns=host_middle_ns - anchor.device_ns,
                device=self._clock.device_index,
            )
        )

    def _cast_latest(self) -> None:
        self.latest_anchor = self._cast_sharpest()
        self.look()

    def _cast_sharpest(self) -> Anchor:
        """Record events until one is not passed soon; return that with the smallest window."""
        sharpest_anchor: Anchor | None = None
        for _ in range(_TRY_COUNT):
            anchor = Anchor(event=None, host_before_ns=self._read_now_ns())
            anchor.event = self._clock.record_event_apart()
            is_seen = self._wait_until_seen(anchor, _LOOK_NS)  # soon
            if sharpest_anchor is None or (
                is_seen and anchor.window_ns < sharpest_anchor.window_ns
            ):
                sharpest_anchor = anchor
            if not is_seen:
                break
        assert sharpest_anchor is not None  # there is at least one try
        return sharpest_anchor

    def _wait_until_seen(self, anchor: Anchor, patience_ns: int = 0) -> bool:
        """Return True if the device passes the anchor within `patience_ns`; ask once at least."""
        deadline_ns = anchor.host_before_ns + patience_ns
        while anchor.host_seen_ns is None:
            is_over, moment_ns = self._clock.is_over(anchor.event), self._read_now_ns()
            if is_over:
                anchor.host_seen_ns = moment_ns
            elif moment_ns >= deadline_ns:
                break
        return anchor.host_seen_ns is not None
