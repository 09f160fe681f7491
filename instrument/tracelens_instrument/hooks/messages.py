"""Numbers of messages: both ends count alike what goes between them, so that the ends can be matched."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MessageNumbers"]


class MessageNumbers:
    """Counts the messages of one communicator apart by direction, peer and tag."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int, int], Callable[[], int]] = {}

    def next(self, op: str, peer: int, tag: int) -> int:
        """Return the number of a message to (``send``) or from (``recv``) a peer with a tag."""
        key = (op, peer, tag)
        count = self._counts.get(key)
        if count is None:  # setdefault, because threads may send side by side
            count = self._counts.setdefault(key, itertools.count().__next__)
        return count()
