"""A signal that keeps the last steps, installed where `TRACELENS_KEEP_SIGNAL` asks for one."""

from __future__ import annotations

import os
import signal

from tracelens_instrument.environment import KEEP_SIGNAL_VARIABLE
from tracelens_instrument.failures import Tolerated, warn_once
from tracelens_instrument.lifecycle import keep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

__all__ = ["install", "uninstall"]

_replaced: dict[int, Any] = {}  # handlers, by signal


def install() -> None:
    """Heed the signal that the environment names, if it does; whoever heeded it before still does."""
    name = os.environ.get(KEEP_SIGNAL_VARIABLE, "")
    try:
        number = _number(name)
        before = signal.getsignal(number)
        if before is not _heed:
            signal.signal(number, _heed)
            _replaced[number] = before
    except (KeyError, ValueError, OSError) as error:
        warn_once(f"{KEEP_SIGNAL_VARIABLE} is {name!r}, which cannot be heeded ({error})")


def uninstall() -> None:
    """Leave the handler as it was found, unless somebody else has changed it since."""
    for number, before in list(_replaced.items()):
        with Tolerated(ValueError):  # in a thread that may not: ours does no harm
            if signal.getsignal(number) is _heed:
                signal.signal(number, before)
            del _replaced[number]


def _heed(number: int, frame: FrameType | None) -> None:
    keep()
    before = _replaced.get(number)
    if callable(before):
        before(number, frame)


def _number(name: str) -> signal.Signals:
    if name.isdecimal():
        return signal.Signals(int(name))
    return signal.Signals["SIG" + name.upper().removeprefix("SIG")]
