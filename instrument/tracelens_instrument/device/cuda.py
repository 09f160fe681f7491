"""CUDA devices as PyTorch shows them: events with times, recorded on streams.

`torch.cuda.Event.elapsed_time` has a resolution of half a microsecond and is a 32-bit float of
milliseconds. Nothing here synchronises: events are recorded and asked, never waited for. While a stream
is captured into a graph, events must be neither recorded for us nor asked about.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import torch

Event: TypeAlias = Any  # `torch.cuda.Event`

__all__ = ["CudaClock", "Event", "current"]

_CUDA: Final[Any] = torch.cuda  # which is typed in part only
_HIGH_PRIORITY: Final = -1  # priority of a stream
_MAX_SPARE_EVENTS: Final = 8192
_CLOCKS: Final[dict[int, CudaClock]] = {}


class CudaClock:
    """A CUDA device, as `tracelens_instrument.device.timebase.DeviceClock`."""

    def __init__(self, index: int) -> None:
        self._device_index = index
        self._apart: Any = None
        self._spare_events: list[Event] = []

    @property
    def device_index(self) -> int:
        """Its number in this process."""
        return self._device_index

    @property
    def device_name(self) -> str:
        """Its name as PyTorch has it."""
        return f"cuda:{self._device_index}"

    def record_event(self) -> tuple[Event, int] | None:
        """Record an event on the thread's stream; return it and the stream's id, None while captured."""
        if _CUDA.is_current_stream_capturing():
            return None
        stream = _CUDA.current_stream(self._device_index)
        event = self._event()
        event.record(stream)
        return event, stream.stream_id

    def record_event_apart(self) -> Event:
        """Record an event on a stream of our own."""
        if self._apart is None:
            self._apart = _CUDA.Stream(self._device_index, priority=_HIGH_PRIORITY)
        event = self._event()
        event.record(self._apart)
        return event

    def can_query(self) -> bool:
        """Return True if events may be asked about: not while this thread captures a graph."""
        return not _CUDA.is_current_stream_capturing()

    def is_over(self, event: Event) -> bool:
        """Return True if the device has passed an event; does not wait for it."""
        return bool(event.query())

    def elapsed_ns_between(self, first: Event, second: Event) -> int:
        """Return the device's time between two events that are over."""
        return round(float(first.elapsed_time(second)) * 1e6)

    def reuse_events(self, *events: Event) -> None:
        """Keep events for later: making one costs more than recording it."""
        if len(self._spare_events) < _MAX_SPARE_EVENTS:
            self._spare_events.extend(events)

    def _event(self) -> Event:
        try:
            return self._spare_events.pop()
        except IndexError:
            return _CUDA.Event(enable_timing=True)


def current() -> CudaClock:
    """Return the device that the calling thread uses."""
    index = _CUDA.current_device()
    clock = _CLOCKS.get(index)
    return _CLOCKS.setdefault(index, CudaClock(index)) if clock is None else clock
