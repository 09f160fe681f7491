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
    "read_finished_steps",
    "uninstall_signal",
]

_WORDS_PER_RECORD: Final = RECORD_BYTES // 8
_INTEGERS_PER_RECORD: Final = RECORD_BYTES // 4
_STEP_INTEGER: Final = 9  # the integer of a record that is its step; the last is its definition
REQUEST_FILE: Final = "keep.request"
WHEN_VARIABLE: Final = "TRACELENS_KEEP_WHEN"
_LOOK_EVERY_NS: Final = 10**9
_WHEN_PATTERN: Final = r"slow:([0-9]{1,4}(?:\.[0-9]{1,3})?)(?::([0-9]{1,4}))?"
_STEPS_IN_A_ROW: Final = 3  # steps in a row
_REMEMBERED_STEPS: Final = 64
_FEWEST_STEPS: Final = 20  # steps, to know what is usual
# Six standard deviations, from the median deviation of a normal distribution.
_OUTLIER_MADS: Final = 6 * 1.4826


class _RingSegment(NamedTuple):
    path: Path
    step_count: int  # that were over when it came into use


class Ring:
    """Segments in the order in which they came into use; the last is in use now and never goes.

    A segment holds nothing younger than what was current when its successor came into use.
    """

    def __init__(self, last: int) -> None:
        self._kept_steps = last
        self._segments: deque[_RingSegment] = deque()

    def add(self, path: Path, step_count: int) -> None:
        """Add a segment that is used after `step_count` steps."""
        self._segments.append(_RingSegment(path, step_count))

    def drop_outdated(self, step_count: int) -> Iterator[Path]:
        """Drop the segments with nothing of the last steps, `step_count` being over."""
        while (
            len(self._segments) > 1 and self._segments[1].step_count + self._kept_steps < step_count
        ):
            yield self._segments.popleft().path

    def drop_oldest(self) -> Path | None:
        """Drop the oldest segment, if any may be dropped."""
        return self._segments.popleft().path if len(self._segments) > 1 else None

    def freeze(self) -> None:
        """Keep the held steps permanently, the segment in use included."""
        self._segments.clear()


def read_finished_steps(content: bytes, step_definition: int) -> list[tuple[int, int, int]]:
    """Return (number, begin, end), ns, of the steps that are over in a segment's content.

    Their records have the definition's number `step_definition`. An end is 0 while a step lasts, and
    negative if it failed.
    """
    int64_words, int32_words = memoryview(content).cast("q"), memoryview(content).cast("i")
    definition_ids = int32_words[_INTEGERS_PER_RECORD - 1 :: _INTEGERS_PER_RECORD].tolist()
    steps: list[tuple[int, int, int]] = []
    for row in _find_rows(definition_ids, step_definition):
        word_index = _WORDS_PER_RECORD * row
        begin_ns, end_ns = int64_words[word_index], int64_words[word_index + 1]
        if end_ns:
            step_number = int32_words[_INTEGERS_PER_RECORD * row + _STEP_INTEGER]
            steps.append((step_number, begin_ns, abs(end_ns)))
    return steps


def _find_rows(definitions: list[int], definition: int) -> Iterator[int]:
    """Find the wanted ones; the first row is the segment's header."""
    row = 0
    with contextlib.suppress(ValueError):
        while True:
            row = definitions.index(definition, row + 1)
            yield row


class SlowSteps:
    """Tells when steps begin to take longer than usual: several in a row, each time once.

    Longer is more than `factor` times the median of the last 64 steps, and further from it than chance
    takes steps, by their median absolute deviation. A new level is usual once it holds for a while.
    """

    def __init__(self, factor: float, step_count: int) -> None:
        self._slow_factor = factor
        self._required_slow_steps = step_count
        self._recent_steps_ns: deque[int] = deque(maxlen=_REMEMBERED_STEPS)
        self._last_end_ns: int | None = None
        self._slow_step_count = 0

    def ends_slow_row(self, step_end_ns: int) -> bool:
        """Called when a step ends; True if it is the last of enough slow ones in a row."""
        step_begin_ns, self._last_end_ns = self._last_end_ns, step_end_ns
        if step_begin_ns is None:
            return False
        step_ns = step_end_ns - step_begin_ns  # since the end of the step before
        is_slow = len(self._recent_steps_ns) >= _FEWEST_STEPS and step_ns > self._limit_ns()
        self._recent_steps_ns.append(step_ns)
        self._slow_step_count = self._slow_step_count + 1 if is_slow else 0
        return self._slow_step_count == self._required_slow_steps

    def _limit_ns(self) -> float:
        median_ns = _median(self._recent_steps_ns)
        deviation_ns = _median(abs(step_ns - median_ns) for step_ns in self._recent_steps_ns)
        return max(self._slow_factor * median_ns, median_ns + _OUTLIER_MADS * deviation_ns)


class KeepRequest:
    """The request of a trace folder, as one of its recordings watches and makes it."""

    def __init__(self, directory: Path, keep_now: Callable[[], object]) -> None:
        self._file = directory / REQUEST_FILE
        self._keep = keep_now
        self._seen_touch_ns = self._touched()
        self._look_due_ns = 0
        self._slow_steps = _parse_slow_steps(os.environ.get(WHEN_VARIABLE, ""))

    def at_step_boundary(self, moment_ns: int) -> None:
        """Keep the steps held, if that is requested or steps are slow."""
        if self._slow_steps is not None and self._slow_steps.ends_slow_row(moment_ns):
            self._keep()
            self._ask()
        elif moment_ns >= self._look_due_ns:
            self._look_due_ns = moment_ns + _LOOK_EVERY_NS
            touched = self._touched()
            if touched != self._seen_touch_ns:
                self._seen_touch_ns = touched
                self._keep()

    def _ask(self) -> None:
        """Ask all ranks, unless one of them has just done so for the same reason."""
        touched = self._touched()
        if touched is None or time.time_ns() - touched > _LOOK_EVERY_NS:
            with Tolerated(OSError):  # where it cannot be asked, this rank keeps its own steps
                self._file.touch()
        self._seen_touch_ns = self._touched()

    def _touched(self) -> int | None:
        with Tolerated(OSError):
            return self._file.stat().st_mtime_ns
        return None


def _parse_slow_steps(text: str) -> SlowSteps | None:
    match = re.fullmatch(_WHEN_PATTERN, text) if text else None
    if match and float(match[1]) > 1 and int(match[2] or _STEPS_IN_A_ROW) > 0:
        return SlowSteps(float(match[1]), int(match[2] or _STEPS_IN_A_ROW))
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
        signal_number = _signal_number(name)
        earlier_handler = signal.getsignal(signal_number)
        if earlier_handler is not _on_signal:
            signal.signal(signal_number, _on_signal)
            _replaced_handlers[signal_number] = earlier_handler
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
