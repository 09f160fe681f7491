"""Which segments may go when only the last steps are to be kept."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Ring"]


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
