"""What a recording loses: counted by reason, and told in its side file now and then."""

from __future__ import annotations

from tracelens.schema.side import dropped_line
from tracelens_instrument.failures import Counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

__all__ = ["Losses"]

_FIRST_WAIT_NS: Final = 10**9
_LONGEST_WAIT_NS: Final = 64 * 10**9


class Losses:
    """Counters by reason; a long loss is told ever more rarely, so that telling it stays small."""

    def __init__(self, tell: Callable[[bytes], None]) -> None:
        self._tell = tell
        self._counters: dict[str, Counter] = {}
        self._told: dict[str, int] = {}
        self._due = 0
        self._wait = _FIRST_WAIT_NS

    def counter(self, reason: str) -> Counter:
        """Return the counter of a reason."""
        return self._counters.setdefault(reason, Counter())

    def adopt(self, reason: str, counter: Counter) -> None:
        """Tell of a counter that counts elsewhere."""
        self._counters[reason] = counter

    def tell_if_due(self, moment: int) -> None:
        """Tell what has changed, unless it was told just before `moment`."""
        if moment >= self._due and self.tell():
            self._due = moment + self._wait
            self._wait = min(2 * self._wait, _LONGEST_WAIT_NS)

    def tell(self) -> bool:
        """Tell what has changed since the last time; whether anything has."""
        told = dict(self._told)
        for reason, counter in list(self._counters.items()):
            count = counter.total()
            if count != self._told.get(reason, 0):
                self._told[reason] = count
                self._tell(dropped_line(reason, count))
        return told != self._told
