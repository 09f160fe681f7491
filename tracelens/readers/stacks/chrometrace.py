"""py-spy's events (`--format chrometrace`): a frame begins (B) with the first sample that has it.

It ends (E) with the first that has it not. Times are microseconds since py-spy began. Threads that were
idle have no stack then, unless py-spy ran with `--idle`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tracelens.readers.event_stream import EventStream, begin_of_events
from tracelens.readers.gathered import MOST_NS
from tracelens.readers.stacks.runs import Frame, Run, Stacks, Thread
from tracelens.schema.gate import refuse_beyond

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracelens.readers.event_stream import Event

__all__ = ["is_py_spy", "stacks_of"]

_MARK: Final = re.compile(rb'"cat"\s*:\s*"py-spy"')
_US: Final = 1_000
_DEEPEST: Final = 2_000


def is_py_spy(path: Path) -> bool:
    """Return whether a file begins as py-spy's events do."""
    return _MARK.search(begin_of_events(path)) is not None


def stacks_of(path: Path) -> Stacks:
    """Read one file.

    Raises:
        NotATrace: there is no list of events, it is no regular file, or larger than it may be.
        OSError: it cannot be read.
    """
    found = Stacks()
    threads: dict[tuple[int, int], _Stack] = {}
    stream = EventStream(path)
    runs = 0
    for piece in stream.pieces():
        for event in piece:
            runs += _take(event, found, threads)
        refuse_beyond("rows", runs)
    found.streamed(stream)
    still_open = sum(len(stack.frames) for stack in threads.values())
    if still_open:
        found.left_out["frames that do not end"] = still_open
    for (pid, tid), stack in threads.items():
        if stack.runs:
            found.runs[Thread(pid, f"thread {tid}")] = stack.runs
    return found.translated()


class _Stack:
    """A thread's frames that are open, since when, and its runs so far."""

    def __init__(self, number: Callable[[tuple[Frame, ...]], int]) -> None:
        self._number = number
        self.frames: list[Frame] = []
        self.since_ns = 0
        self.runs: list[Run] = []

    def until(self, now_ns: int) -> int:
        """End the run of the frames that are open, if any time has passed; return how many ended."""
        ended = 0
        if self.frames and now_ns > self.since_ns:
            self.runs.append(Run(self.since_ns, now_ns, self._number(tuple(self.frames))))
            ended = 1
        self.since_ns = max(self.since_ns, now_ns)
        return ended


def _take(event: Event | object, found: Stacks, threads: dict[tuple[int, int], _Stack]) -> int:
    """Take an event, and return how many runs it ends."""
    if not isinstance(event, dict):
        found.unusable += 1
        return 0
    phase, name = event.get("ph"), event.get("name")
    pid, tid, at = (_number(event.get(key)) for key in ("pid", "tid", "ts"))
    if phase not in ("B", "E"):
        found.left_out["events that neither begin nor end a frame"] += 1
        return 0
    if not isinstance(name, str) or not name or pid is None or tid is None or at is None:
        found.unusable += 1
        return 0
    found.sorts["begins and ends of frames"] += 1
    stack = threads.get((pid, tid))
    if stack is None:
        stack = threads[pid, tid] = _Stack(found.number)
    ended = stack.until(at * _US)
    if phase == "B" and len(stack.frames) < _DEEPEST:
        stack.frames.append(_frame(name, event.get("args")))
    elif phase == "E" and stack.frames and stack.frames[-1].name == name:
        stack.frames.pop()
    else:
        found.unusable += 1
    return ended


def _frame(name: str, args: object) -> Frame:
    place = args if isinstance(args, dict) else {}
    file, line = place.get("filename"), _number(place.get("line"))
    return Frame(name, file if isinstance(file, str) else "", line or 0)


def _number(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < MOST_NS // _US else None
