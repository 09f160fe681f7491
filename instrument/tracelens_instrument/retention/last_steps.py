"""Keeping the last steps: which segments may go, and requests to keep what there is.

A recording of the last steps looks once a second, between two steps, whether the file ``keep.request``
of the trace folder was touched, and keeps what it holds if so. So one rank, a person or a monitor asks
all ranks together. With `TRACELENS_KEEP_WHEN` set to ``slow:FACTOR`` or ``slow:FACTOR:STEPS`` each rank
also asks itself, when that number of steps in a row (default 3) take longer than usual by that factor.
Where `TRACELENS_KEEP_SIGNAL` names a signal, that keeps them, too.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens.schema.record import RECORD_BYTES
from tracelens_instrument.core.environment import KEEP_SIGNAL_VARIABLE
from tracelens_instrument.core.failures import Tolerated, warn_once
from tracelens_instrument.core.state import STATE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from types import FrameType
    from typing import Any

__all__ = [
    "REQUEST_FILE",
    "WHEN_VARIABLE",
    "KeepRequest",
    "Ring",
    "SlowSteps",
    "install_signal",
    "steps_in",
    "uninstall_signal",
]


_WORDS: Final = RECORD_BYTES // 8
_INTEGERS: Final = RECORD_BYTES // 4
_STEP: Final = 9  # the integer of a record that is its step; the last is its definition
REQUEST_FILE: Final = "keep.request"
WHEN_VARIABLE: Final = "TRACELENS_KEEP_WHEN"
_LOOK_EVERY_NS: Final = 10**9
_WHEN_PATTERN: Final = r"slow:([0-9]{1,4}(?:\.[0-9]{1,3})?)(?::([0-9]{1,4}))?"
_STEPS_IN_A_ROW: Final = 3  # steps in a row
_REMEMBERED: Final = 64
_FEWEST_STEPS: Final = 20  # steps, to know what is usual
_OUTLIER_MADS: Final = (
    6 * 1.4826
)  # standard deviations, from the median deviation of a normal distribution


class _RingSegment(NamedTuple):
    path: Path
    steps: int  # that were over when it came into use


class Ring:
    """Segments in the order in which they came into use; the last is in use now and never goes.

    A segment holds nothing younger than what was current when its successor came into use.
    """

    def __init__(self, last: int) -> None:
        self._last = last
        self._taken: deque[_RingSegment] = deque()

    def take(self, path: Path, steps: int) -> None:
        """Add a segment that is used after `steps` steps."""
        self._taken.append(_RingSegment(path, steps))

    def outdated(self, steps: int) -> Iterator[Path]:
        """Drop the segments with nothing of the last steps, `steps` being over."""
        while len(self._taken) > 1 and self._taken[1].steps + self._last < steps:
            yield self._taken.popleft().path

    def oldest(self) -> Path | None:
        """Drop the oldest segment, if any may be dropped."""
        return self._taken.popleft().path if len(self._taken) > 1 else None

    def freeze(self) -> None:
        """Keep the held steps permanently, the segment in use included."""
        self._taken.clear()


def steps_in(content: bytes, definition: int) -> list[tuple[int, int, int]]:
    """Return number, begin and end of the steps that are over in a segment."""
    int64_words, int32_words = memoryview(content).cast("q"), memoryview(content).cast("i")
    return [
        (
            int32_words[_INTEGERS * row + _STEP],
            int64_words[_WORDS * row],
            abs(int64_words[_WORDS * row + 1]),
        )
        for row in _rows_of(int32_words[_INTEGERS - 1 :: _INTEGERS].tolist(), definition)
        if int64_words[_WORDS * row + 1]
    ]


def _rows_of(definitions: list[int], wanted: int) -> Iterator[int]:
    """Find the wanted ones; the first row is the segment's header."""
    row = 0
    with contextlib.suppress(ValueError):
        while True:
            row = definitions.index(wanted, row + 1)
            yield row


class SlowSteps:
    """Tells when steps begin to take longer than usual: several in a row, each time once.

    Longer is more than `factor` times the median of the last 64 steps, and further from it than chance
    takes steps, by their median absolute deviation. A new level is usual once it holds for a while.
    """

    def __init__(self, factor: float, steps: int) -> None:
        self._factor = factor
        self._steps = steps
        self._recent: deque[int] = deque(maxlen=_REMEMBERED)
        self._before: int | None = None
        self._in_a_row = 0

    def over(self, moment_ns: int) -> bool:
        """Called when a step is over; whether it is the one that makes it enough."""
        previous_ns, self._before = self._before, moment_ns
        if previous_ns is None:
            return False
        step_ns = moment_ns - previous_ns
        is_slow = len(self._recent) >= _FEWEST_STEPS and step_ns > self._limit()
        self._recent.append(step_ns)
        self._in_a_row = self._in_a_row + 1 if is_slow else 0
        return self._in_a_row == self._steps

    def _limit(self) -> float:
        usual = _median(self._recent)
        spread = _median(abs(took - usual) for took in self._recent)
        return max(self._factor * usual, usual + _OUTLIER_MADS * spread)


class KeepRequest:
    """The request of a trace folder, as one of its recordings watches and makes it."""

    def __init__(self, directory: Path, keep: Callable[[], object]) -> None:
        self._file = directory / REQUEST_FILE
        self._keep = keep
        self._seen = self._touched()
        self._look_due = 0
        self._slow = _slow_steps_wanted(os.environ.get(WHEN_VARIABLE, ""))

    def at_step_boundary(self, moment: int) -> None:
        """Keep the steps held, if that is requested or steps are slow."""
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


def _slow_steps_wanted(text: str) -> SlowSteps | None:
    found = re.fullmatch(_WHEN_PATTERN, text) if text else None
    if found and float(found[1]) > 1 and int(found[2] or _STEPS_IN_A_ROW) > 0:
        return SlowSteps(float(found[1]), int(found[2] or _STEPS_IN_A_ROW))
    if text:
        warn_once(
            f"{WHEN_VARIABLE} is passed over: it is {text!r}, expected slow:FACTOR or slow:FACTOR:STEPS "
            "with a factor above 1, such as slow:1.5:3"
        )
    return None


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


_replaced_handlers: dict[int, Any] = {}  # handlers, by signal


def install_signal() -> None:
    """Handle the signal that the environment names, if any, and chain to the handler before."""
    name = os.environ.get(KEEP_SIGNAL_VARIABLE, "")
    try:
        number = _signal_number(name)
        earlier_handler = signal.getsignal(number)
        if earlier_handler is not _on_signal:
            signal.signal(number, _on_signal)
            _replaced_handlers[number] = earlier_handler
    except (KeyError, ValueError, OSError) as error:
        warn_once(f"{KEEP_SIGNAL_VARIABLE} is {name!r}, which cannot be handled ({error})")


def uninstall_signal() -> None:
    """Restore the handler that was there before, unless it has been changed since."""
    for number, earlier_handler in list(_replaced_handlers.items()):
        with Tolerated(ValueError):  # in a thread that may not: ours does no harm
            if signal.getsignal(number) is _on_signal:
                signal.signal(number, earlier_handler)
            del _replaced_handlers[number]


def _on_signal(number: int, frame: FrameType | None) -> None:
    if STATE.recording is not None:
        STATE.recording.keep()
    before = _replaced_handlers.get(number)
    if callable(before):
        before(number, frame)


def _signal_number(name: str) -> signal.Signals:
    if name.isdecimal():
        return signal.Signals(int(name))
    return signal.Signals["SIG" + name.upper().removeprefix("SIG")]
