"""Device times of spans: events around each, asked about between later steps, never waited for."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracelens.schema.record import TIMED_ON_DEVICE
from tracelens.schema.vocabulary import DEVICE_TIMES
from tracelens_instrument.device_anchors import Anchors
from tracelens_instrument.registry import REGISTRY
from tracelens_instrument.span import Span

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.schema.side import ClockReading
    from tracelens_instrument.device_anchors import Anchor
    from tracelens_instrument.device_clock import DeviceClock, Event

__all__ = ["MOST_WAITING", "DeviceTimes", "Timing"]

MOST_WAITING: Final = 4096
_ASK_FROM: Final = 1024  # waiting, where no step ends that would ask
_NOT_YET: Final = 8  # answers like this in a row, after which the rest is not asked
_PAUSE_S: Final = 0.001

_names: Final = itertools.count(TIMED_ON_DEVICE + 1)


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
        tell: Callable[[ClockReading], None],
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
        self._anchors = Anchors(clock, tell, now)

    def begin(self, row: str | None) -> Timing | None:
        """Begin to time what the calling thread's stream does next; None where that cannot be."""
        recorded = None if self._closed else self._clock.record()
        if recorded is None:
            return None
        event, stream = recorded
        where = self._row(f"stream {stream}" if row is None else row)
        return Timing(next(_names), self._now(), self._anchors.latest, event, where)

    def end(self, timing: Timing) -> None:
        """End where the calling thread's stream is now."""
        recorded = None if self._closed else self._clock.record()
        if recorded is None:
            return
        timing.end = recorded[0]
        self._waiting.append(timing)
        if len(self._waiting) >= _ASK_FROM:
            self.ask()
        if len(self._waiting) > MOST_WAITING:
            with contextlib.suppress(IndexError):  # another thread has just written them all
                self._waiting.popleft()
                self._lose()

    def drop(self, timing: Timing) -> None:
        """Make as if it had not begun."""
        self._clock.reuse(timing.begin)

    def at_step_boundary(self) -> None:
        """Write down what is known by now, and cast an anchor now and then."""
        self.ask()
        if self._clock.may_ask():
            self._anchors.cast_if_due()

    def ask(self) -> None:
        """Write down the times of all spans that the device has come past."""
        if not self._clock.may_ask() or not self._lock.acquire(blocking=False):
            return
        try:
            self._anchors.look()
            self._write_known()
        finally:
            self._lock.release()

    def finish(self, limit_s: float) -> None:
        """Give the device some time to come to the end; what is then not known is lost, and counted."""
        if self._clock.may_ask():
            self._anchors.cast_last()
        until = time.monotonic() + limit_s
        while self._unknown and time.monotonic() < until:
            self.ask()
            if self._unknown:
                time.sleep(_PAUSE_S)
        self._closed = True
        for _ in self._waiting:
            self._lose()
        self._waiting.clear()

    @property
    def _unknown(self) -> bool:
        return bool(self._waiting) or self._anchors.latest.device_ns is None

    def _write_known(self) -> None:
        later: list[Timing] = []
        for _ in range(len(self._waiting)):
            try:
                timing = self._waiting.popleft()
            except IndexError:
                break  # another thread has lost it
            if not self._written(timing):
                later.append(timing)
                if len(later) == _NOT_YET:
                    break
        self._waiting.extendleft(reversed(later))

    def _written(self, timing: Timing) -> bool:
        """Write a span's times down if they are known."""
        clock, since = self._clock, timing.anchor.device_ns
        if since is None or not (clock.is_over(timing.end) and clock.is_over(timing.begin)):
            return False
        begin = since + clock.between_ns(timing.anchor.event, timing.begin)
        length = max(clock.between_ns(timing.begin, timing.end), 0)
        clock.reuse(timing.begin, timing.end)
        host = timing.host_ns
        self._record.complete(host, host + length, timing.stream, nbytes=begin, request=timing.name)
        return True

    def _row(self, name: str) -> int:
        row = self._rows.get(name)
        if row is None:
            clock = self._clock
            row = self._rows[name] = REGISTRY.track(f"{clock.name} {name}", clock.index)
        return row
