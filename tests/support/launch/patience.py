"""How tests wait: for the condition itself, and for so long only because a broken test must end.

No test may fail because the machine is slow, or busy with something else.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PATIENCE_S", "wait_until"]

PATIENCE_S: Final = 500  # below what pytest gives a test, so that a failure says what it waited for


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until something is so, which it will be."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
