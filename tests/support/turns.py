"""Parameters of slow tests that take turns from day to day: all of them run within eight days."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

Thing = TypeVar("Thing")

TURNS: Final = 8
# "all", or the number of a turn, whose default is that of the day.
TURN: Final = os.environ.get("TRACELENS_TURN", str(int(time.time()) // 86_400))


def select_turn(items: Sequence[Thing], turn: str = TURN) -> Sequence[Thing]:
    """Return the things whose turn it is: an eighth of them, at least one; or all if `turn` is "all"."""
    if turn == "all" or not items:
        return items
    turn_count = min(TURNS, len(items))
    return items[int(turn) % turn_count :: turn_count]
