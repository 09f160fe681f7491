"""What `make test-all` does in turns: of many costly things some each day, and all within eight days."""

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


def in_turn(things: Sequence[Thing], turn: str = TURN) -> Sequence[Thing]:
    """Return what this run takes of `things`: all, or an eighth."""
    return things if turn == "all" else things[int(turn) % TURNS :: TURNS]
