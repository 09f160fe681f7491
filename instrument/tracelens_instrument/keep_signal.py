"""A signal that keeps the last steps, installed where `TRACELENS_KEEP_SIGNAL` asks for one."""

from __future__ import annotations

import contextlib
import os

from tracelens_instrument.failures import warn_once
from tracelens_instrument.state import STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from types import FrameType
    from typing import Any, Final

__all__ = ["SIGNAL_VARIABLE", "install", "keep", "uninstall"]

SIGNAL_VARIABLE: Final = "TRACELENS_KEEP_SIGNAL"

_replaced: dict[int, Any] = {}  # handlers, by signal


def keep() -> None:
    """Keep for ever the steps that a recording of the last steps holds now."""
    recording = STATE.recording
    if recording is not None:
        recording.storage.freeze()


def install() -> None:
    """Heed the signal that the environment names, if it does; whoever heeded it before still does."""
    name = os.environ.get(SIGNAL_VARIABLE)
    if not name:
        return
    import signal  # noqa: PLC0415 - it takes a while, and few ask for one

    try:
        number = _number(name)
        before = signal.getsignal(number)
        if before is not _heed:
            signal.signal(number, _heed)
            _replaced[number] = before
    except (KeyError, ValueError, OSError) as error:
        warn_once(f"{SIGNAL_VARIABLE} is {name!r}, which cannot be heeded ({error})")


def uninstall() -> None:
    """Leave the handler as it was found, unless somebody else has changed it since."""
    if not _replaced:
        return
    import signal  # noqa: PLC0415 - as above

    for number, before in list(_replaced.items()):
        with contextlib.suppress(ValueError):  # in a thread that may not: ours does no harm
            if signal.getsignal(number) is _heed:
                signal.signal(number, before)
            del _replaced[number]


def _heed(number: int, frame: FrameType | None) -> None:
    keep()
    before = _replaced.get(number)
    if callable(before):
        before(number, frame)


def _number(name: str) -> signal.Signals:
    import signal  # noqa: PLC0415 - as above

    if name.isdecimal():
        return signal.Signals(int(name))
    return signal.Signals["SIG" + name.upper().removeprefix("SIG")]
