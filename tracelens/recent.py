"""What was made of things that many processes of a run share: made once, and the latest few are known.

Ranks of one program have most in common but times: columns, words, outlines. A pass over thousands of
files looks for these by their content, or by the very array that a column is kept in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["Recent"]

_Made = TypeVar("_Made")


class Recent(Generic[_Made]):
    """Things by a key. Threads may share it: at worst something is made twice.

    Args:
        most: How many are known; before one more, all are forgotten, which is rare and costs nothing.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[Hashable, tuple[_Made, object]] = {}

    def get(self, key: Hashable) -> _Made | None:
        """Return what was made for a key; None if that is not known."""
        found = self._known.get(key)
        return None if found is None else found[0]

    def add(self, key: Hashable, made: _Made, of: object = None) -> _Made:
        """Keep and return what was made for a key.

        `of` is held as long, so that the ids of objects in the key are those of no others.
        """
        if len(self._known) >= self._most:
            self._known.clear()
        self._known[key] = made, of
        return made
