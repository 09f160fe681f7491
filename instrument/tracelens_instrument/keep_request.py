"""Keeping the last steps because a finding asks: slow steps of this rank, or whoever asks all ranks.

A recording of the last steps looks once a second, between two steps, whether the file ``keep.request``
of the trace folder was touched, and keeps what it holds if so. So one rank, a person or a monitor asks
all ranks at once. With `TRACELENS_KEEP_WHEN` set to ``slow:FACTOR`` or ``slow:FACTOR:STEPS`` each rank
also asks itself, as soon as so many steps in a row (3 if left out) take that much longer than usual.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from tracelens_instrument.failures import Tolerated, warn_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

__all__ = ["REQUEST_FILE", "WHEN_VARIABLE", "KeepRequest", "Slow"]

REQUEST_FILE: Final = "keep.request"
WHEN_VARIABLE: Final = "TRACELENS_KEEP_WHEN"

_LOOK_EVERY_NS: Final = 10**9
_WHEN: Final = r"slow:([0-9]{1,4}(?:\.[0-9]{1,3})?)(?::([0-9]{1,4}))?"
_USUALLY: Final = 3  # steps in a row
_REMEMBERED: Final = 64
_ENOUGH: Final = 20  # steps, to know what is usual
_OUTLYING: Final = (
    6 * 1.4826
)  # standard deviations, from the median deviation of a normal distribution


class Slow:
    """Tells when steps begin to take longer than usual: several in a row, each time once.

    Longer is more than `factor` times the median of the last 64 steps, and further from it than chance
    takes steps, by their median absolute deviation. A new level is usual once it holds for a while.
    """

    def __init__(self, factor: float, steps: int) -> None:
        self._factor = factor
        self._steps = steps
        self._lately: deque[int] = deque(maxlen=_REMEMBERED)
        self._before: int | None = None
        self._in_a_row = 0

    def over(self, moment: int) -> bool:
        """Be told that a step is over; whether it is the one that makes it enough."""
        before, self._before = self._before, moment
        if before is None:
            return False
        took = moment - before
        slow = len(self._lately) >= _ENOUGH and took > self._limit()
        self._lately.append(took)
        self._in_a_row = self._in_a_row + 1 if slow else 0
        return self._in_a_row == self._steps

    def _limit(self) -> float:
        usual = _median(self._lately)
        spread = _median(abs(took - usual) for took in self._lately)
        return max(self._factor * usual, usual + _OUTLYING * spread)


class KeepRequest:
    """The request of a trace folder, as one of its recordings heeds and makes it."""

    def __init__(self, directory: Path, keep: Callable[[], object]) -> None:
        self._file = directory / REQUEST_FILE
        self._keep = keep
        self._seen = self._touched()
        self._look_due = 0
        self._slow = _wanted(os.environ.get(WHEN_VARIABLE, ""))

    def at_step_boundary(self, moment: int) -> None:
        """Keep, if somebody asks or the steps do."""
        if self._slow is not None and self._slow.over(moment):
            self._keep()
            self._ask()
        elif moment >= self._look_due:
            self._look_due = moment + _LOOK_EVERY_NS
            touched = self._touched()
            if touched != self._seen:
                self._seen = touched
                self._keep()

    def _ask(self) -> None:
        """Ask all ranks, unless one of them has just done so for the same reason."""
        touched = self._touched()
        if touched is None or time.time_ns() - touched > _LOOK_EVERY_NS:
            with Tolerated(OSError):  # where it cannot be asked, this rank keeps its own steps
                self._file.touch()
        self._seen = self._touched()

    def _touched(self) -> int | None:
        with Tolerated(OSError):
            return self._file.stat().st_mtime_ns
        return None


def _wanted(text: str) -> Slow | None:
    found = re.fullmatch(_WHEN, text) if text else None
    if found and float(found[1]) > 1 and int(found[2] or _USUALLY) > 0:
        return Slow(float(found[1]), int(found[2] or _USUALLY))
    if text:
        warn_once(
            f"{WHEN_VARIABLE} is passed over: it is {text!r}, expected slow:FACTOR or slow:FACTOR:STEPS "
            "with a factor above 1, such as slow:1.5:3"
        )
    return None


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
