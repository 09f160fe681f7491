"""Which segments may go when only the last steps are to be kept."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens.schema.record import RECORD_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Ring", "steps_in"]

_WORDS: Final = RECORD_BYTES // 8
_INTEGERS: Final = RECORD_BYTES // 4
_STEP: Final = 9  # the integer of a record that is its step; the last is its definition


class _Taken(NamedTuple):
    path: Path
    steps: int  # that were over when it came into use


class Ring:
    """Segments in the order in which they came into use; the last is in use now and never goes.

    A segment holds nothing younger than what was current when its successor came into use.
    """

    def __init__(self, last: int) -> None:
        self._last = last
        self._taken: deque[_Taken] = deque()

    def take(self, path: Path, steps: int) -> None:
        """Remember that a segment comes into use after so many steps."""
        self._taken.append(_Taken(path, steps))

    def outdated(self, steps: int) -> Iterator[Path]:
        """Give up the segments with nothing of the last steps, `steps` being over."""
        while len(self._taken) > 1 and self._taken[1].steps + self._last < steps:
            yield self._taken.popleft().path

    def oldest(self) -> Path | None:
        """Give up the oldest segment, if any may go."""
        return self._taken.popleft().path if len(self._taken) > 1 else None

    def freeze(self) -> None:
        """Keep for ever what is there now, the segment in use included."""
        self._taken.clear()


def steps_in(content: bytes, definition: int) -> list[tuple[int, int, int]]:
    """Return number, begin and end of the steps that are over in a segment."""
    words, integers = memoryview(content).cast("q"), memoryview(content).cast("i")
    return [
        (integers[_INTEGERS * row + _STEP], words[_WORDS * row], abs(words[_WORDS * row + 1]))
        for row in _rows(integers[_INTEGERS - 1 :: _INTEGERS].tolist(), definition)
        if words[_WORDS * row + 1]
    ]


def _rows(definitions: list[int], wanted: int) -> Iterator[int]:
    """Find the wanted ones; the first row is the segment's header."""
    row = 0
    with contextlib.suppress(ValueError):
        while True:
            row = definitions.index(wanted, row + 1)
            yield row
