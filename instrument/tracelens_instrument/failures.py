"""What the recorder does when it cannot go on: say so once, count, and let the training run."""

from __future__ import annotations

import itertools
import sys
import warnings

__all__ = ["Counter", "warn_once"]

_said: set[str] = set()


def warn_once(sentence: str) -> None:
    """Warn of `sentence`, once in the life of the process; never raises.

    A user may have turned warnings into errors, and the training must not fail by ours.
    """
    if sentence in _said:
        return
    _said.add(sentence)
    try:
        warnings.warn(f"TraceLens: {sentence}", RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        sys.stderr.write(f"TraceLens: {sentence}\n")


class Counter:
    """Counts exactly, also when threads and signal handlers count at the same time."""

    __slots__ = ("_looks", "_many", "add")

    def __init__(self) -> None:
        self.add = itertools.count().__next__
        self._looks = 0
        self._many = 0

    def add_many(self, number: int) -> None:
        """Count `number` at once; not from several threads at the same time."""
        self._many += number

    def total(self) -> int:
        """How many were counted."""
        self._looks += 1
        return self.add() - self._looks + 1 + self._many
