"""The devices that a recording has met: none on a machine without, mostly one, made at first use."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from tracelens.schema.vocabulary import LATE_TIMES
from tracelens_instrument import device_clock
from tracelens_instrument.clock import now
from tracelens_instrument.failures import let_through, shown, warn_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.schema.side import ClockReading
    from tracelens_instrument.device_clock import DeviceClock
    from tracelens_instrument.device_times import DeviceTimes
    from tracelens_instrument.losses import Losses

__all__ = ["Devices"]

STOP_LIMIT_S: Final = 2.0

# In a forked child the parent's device cannot be used, not even to give its events back.
_ABANDONED: Final[list[Devices]] = []


class Devices:
    """Device times by device. A device that fails is left alone from then on; training goes on."""

    def __init__(self, tell: Callable[[ClockReading], None], losses: Losses) -> None:
        self._tell = tell
        self._losses = losses
        self._known: dict[int, DeviceTimes] = {}
        self._failed = False
        self._lock = threading.RLock()  # a signal handler may come in between

    def here(self) -> DeviceTimes | None:
        """Return the device that the calling thread uses; None without one."""
        if self._failed:
            return None
        clock = device_clock.find()
        if clock is None:
            return None
        times = self._known.get(clock.index)
        if times is None and clock.may_ask():
            times = self._meet(clock)
        return times

    def at_step_boundary(self) -> None:
        """Do what is to be done between two steps."""
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
        """Leave devices alone from now on, because one has failed."""
        let_through(error)
        self._failed = True
        warn_once(f"device times are not recorded any more ({shown(error)})", "device times")

    def abandon(self) -> None:
        """Let go of everything without touching a device, in a forked child."""
        self._failed = True
        _ABANDONED.append(self)

    def _meet(self, clock: DeviceClock) -> DeviceTimes:
        # Where there is no device nothing of it is loaded; and that module makes spans, which need us.
        from tracelens_instrument.device_times import DeviceTimes  # noqa: PLC0415 - see above

        with self._lock:
            times = self._known.get(clock.index)
            if times is None:
                lose = self._losses.counter(LATE_TIMES).add
                made = DeviceTimes(clock, self._tell, lose, now)
                times = self._known.setdefault(clock.index, made)
            return times
