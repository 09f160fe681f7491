"""Functions that were decorated while nothing recorded, which then nobody can record."""

from __future__ import annotations

from tracelens_instrument.failures import warn_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

__all__ = ["MISSED", "Missed"]

_MOST_TOLD: Final = 3


class Missed:
    """How many there are, and the names of the first."""

    def __init__(self) -> None:
        self.clear()

    def add(self, name: str) -> None:
        """Remember one more."""
        self._number += 1
        if len(self._names) < _MOST_TOLD:
            self._names.append(name)

    def say(self) -> None:
        """Say it, and forget them."""
        if self._number:
            more = self._number - len(self._names)
            warn_once(
                f"not recorded are {', '.join(self._names)}{f' and {more} more' if more else ''}, given "
                "to tl.traced before recording began: call tl.start before functions are decorated, or "
                "set TRACELENS_DIR",
                "missed",
            )
        self.clear()

    def clear(self) -> None:
        """Forget them."""
        self._names: list[str] = []
        self._number = 0


MISSED: Final = Missed()
