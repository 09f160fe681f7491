"""How the C library keeps memory that is free: a pass over a run allocates and frees gigabytes.

Left alone it gives the room of small arrays back each time, only to get it anew page by page, and
holds what large ones and other threads leave (man mallopt). Systems other than Linux with glibc are left
alone.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any, Final

__all__ = ["give_back", "keep_room"]

_M_TRIM_THRESHOLD: Final = -1  # of malloc.h
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGE: Final = 32 << 20  # bytes, the most that it takes; the matrices of a long run are larger
_ROOM: Final = 32 << 20


def keep_room() -> None:
    """For this process: give only large blocks back when they are freed, and share all room."""
    mallopt = getattr(_c_library(), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, _ROOM)
        mallopt(_M_ARENA_MAX, 1)


def give_back() -> None:
    """Give back whatever is free; for the end of a pass."""
    malloc_trim = getattr(_c_library(), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


@cache
def _c_library() -> Any:
    return ctypes.CDLL(None) if sys.platform == "linux" else None
