"""Spans that are timed on a device, too: ``tl.span(..., device=True)``.

On a machine without a device they are ordinary spans.
"""

from __future__ import annotations

from threading import local

from tracelens_instrument.core.spans import end_by
from tracelens_instrument.core.state import STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self, Unpack

    from tracelens_instrument.core.spans import Future, Span, Token, Values
    from tracelens_instrument.device.times import Devices, DeviceTimer, Timing

__all__ = ["DeviceSpan", "DeviceToken"]


class DeviceToken:
    """A span that has begun, on the host and on the device; as `Token`."""

    __slots__ = ("_devices", "_timer", "_timing", "_token")

    def __init__(
        self, token: Token, devices: Devices, timer: DeviceTimer, timing: Timing | None
    ) -> None:
        self._token = token
        self._devices = devices
        self._timer = timer
        self._timing = timing

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(failed=kind is not None)

    def end(self, failed: bool = False) -> None:  # noqa: FBT001, FBT002 - as Token has it
        """Close the span; on the device, where the calling thread's stream is now."""
        timing, self._timing = self._timing, None
        if timing is not None:
            try:
                self._timer.end(timing)
            except Exception as error:  # noqa: BLE001 - the border to the user's training code
                self._devices.give_up(error)
        self._token.end(failed)

    def completed(self, future: Future) -> None:
        """Close the span, as failed if `future` holds an error; a callback for it."""
        end_by(future, self)

    def discard(self) -> None:
        """Remove the span as if it had not begun."""
        timing, self._timing = self._timing, None
        if timing is not None:
            self._timer.drop_timing(timing)
        self._token.discard()


class DeviceSpan:
    """A kind of work that is queued on a device: as `Span`, and timed there, too.

    A timeline shows it as `track_name`; without one, by the stream on which it begins.
    """

    def __init__(self, span: Span, track_name: str | None = None) -> None:
        self._span = span
        self._track_name = track_name
        self._thread_local = local()

    def __enter__(self) -> Self:
        if STATE.is_on:
            self._entered().append(self.begin())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        entered = self._entered()
        if entered:
            entered.pop().end(failed=kind is not None)

    def __reduce__(self) -> tuple[Callable[..., DeviceSpan], tuple[Span, str | None]]:
        return DeviceSpan, (self._span, self._track_name)

    def begin(self, track: int | None = None, **values: Unpack[Values]) -> Token | DeviceToken:
        """Begin a span now, on this thread or on `track`; what is returned ends it.

        The number `request` ties it to its times on the device; a span with another one has none.
        """
        devices = self._find_devices()
        if devices is None or "request" in values:
            return self._span.begin(track, **values)
        device_timer, request, timing = None, None, None  # None: it is not timed on the device
        try:
            device_timer = devices.current_timer()
            request = None if device_timer is None else device_timer.next_request()
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            devices.give_up(error)
        if device_timer is None or request is None:
            return self._span.begin(track, **values)
        values["request"] = request
        # On the host first: nothing begins on the device before.
        token = self._span.begin(track, **values)
        try:
            timing = device_timer.begin(request, self._track_name)
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            devices.give_up(error)
        return DeviceToken(token, devices, device_timer, timing)

    __call__ = begin

    def _find_devices(self) -> Devices | None:
        """Open a recording that waits for its first event; return its devices, None if none is open."""
        if STATE.segment is None and (waiting := STATE.waiting) is not None:
            waiting.open_recording()
        recording = STATE.recording
        if recording is None or STATE.segment is None:
            return None
        devices: Devices = recording.devices
        return devices

    def _entered(self) -> list[Token | DeviceToken]:
        try:
            tokens: list[Token | DeviceToken] = self._thread_local.entered
        except AttributeError:
            tokens = self._thread_local.entered = []
        return tokens
