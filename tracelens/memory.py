"""What is kept in memory to be used again: room that is free, and what was made of shared arrays.

A pass over a run allocates and frees gigabytes. Left alone the C library gives the room of small arrays
back each time, only to get it anew page by page, and holds what large ones and other threads leave (man
mallopt). Systems other than Linux with glibc are left alone.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from numpy.typing import NDArray

__all__ = ["Known", "forget", "give_back", "keep_room"]

_Made = TypeVar("_Made")

_M_TRIM_THRESHOLD: Final = -1  # of malloc.h
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGE: Final = 32 << 20  # bytes, the most that it takes; the matrices of a long run are larger
_ROOM: Final = 32 << 20
_SMALL: Final = 384 << 20  # bytes in memory, libraries included


def keep_room() -> None:
    """For this process: give only large blocks back when they are freed, and share all room."""
    mallopt = getattr(_c_library(), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, _ROOM)
        mallopt(_M_ARENA_MAX, 1)


def give_back() -> None:
    """Give back whatever is free; for the end of a pass. A small process keeps it: it is used again."""
    malloc_trim = getattr(_c_library(), "malloc_trim", None)
    if malloc_trim is not None and _most_so_far() > _SMALL:
        malloc_trim(0)


def _most_so_far() -> int:
    """Return how many bytes this process had in memory at its most, on Linux."""
    import resource  # noqa: PLC0415 - other systems lack it

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@cache
def _c_library() -> Any:
    return ctypes.CDLL(None) if sys.platform == "linux" else None


def forget() -> None:
    """Forget what was made of shared arrays; for the end of a pass over all processes."""
    for known in _EVERY:
        known.clear()


class Known(Generic[_Made]):
    """What was made once, and serves again: processes of one program have most columns in common.

    Args:
        rows: For how many rows of arrays there is room; when they are more, all is forgotten.
    """

    def __init__(self, rows: int) -> None:
        self._most = rows
        self._rows = 0
        self._made: dict[Hashable, Any] = {}
        _EVERY.append(self)

    def get(self, key: Hashable) -> _Made | None:
        """Return what was put there."""
        return self._made.get(key)

    def put(self, key: Hashable, made: _Made, rows: int) -> None:
        """Keep something, which has so many rows, if there is room."""
        self._keep(key, made, rows)

    def _keep(self, key: Hashable, made: object, rows: int) -> None:
        if rows > self._most:
            return
        if self._rows + rows > self._most:
            self.clear()
        self._made[key] = made
        self._rows += rows

    def clear(self) -> None:
        """Forget all."""
        self._made.clear()
        self._rows = 0

    def of(
        self, arrays: Sequence[NDArray[Any]], make: Callable[[], _Made], *also: Hashable
    ) -> _Made:
        """Return what is made of arrays, and of what else is given; once, if the arrays are fixed."""
        for array in arrays:
            if array.flags.writeable:
                return make()
        key = (*also, *map(id, arrays))
        found = self._made.get(key)
        if found is None:
            found = make(), arrays  # with the arrays, so that no others come to where they are
            self._keep(key, found, max(map(len, arrays), default=0))
        made: _Made = found[0]
        return made


_EVERY: Final[list[Known[Any]]] = []
