"""What is kept in memory to be used again: room that is free, and what was made of shared arrays.

A pass over a run allocates and frees gigabytes. Left alone the C library gives the room of small arrays
back each time, only to get it anew page by page, and holds what large ones and other threads leave (man
mallopt). Systems other than Linux with glibc are left alone.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakMethod

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from numpy.typing import NDArray

__all__ = ["BoundedCache", "cache_last_results", "free_unused_memory", "keep_freed_memory"]

_Key = TypeVar("_Key", bound="Hashable")
_Made = TypeVar("_Made")

_M_TRIM_THRESHOLD: Final = -1  # of malloc.h
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGE: Final = 32 << 20  # bytes, the most that it takes; the matrices of a long run are larger
_ROOM: Final = 32 << 20
_SMALL: Final = 384 << 20  # bytes in memory, libraries included
_MOST_ROWS: Final = 1 << 22  # of arrays that processes share


def keep_freed_memory() -> None:
    """Let this process keep freed memory for reuse: only large blocks go back to the system."""
    mallopt = getattr(_c_library(), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, _ROOM)
        mallopt(_M_ARENA_MAX, 1)


def free_unused_memory() -> None:
    """Give all free memory back to the system, at the end of a pass; a small process keeps it."""
    malloc_trim = getattr(_c_library(), "malloc_trim", None)
    if malloc_trim is not None and _read_peak_bytes() > _SMALL:
        malloc_trim(0)


def _read_peak_bytes() -> int:
    """Count how many bytes this process had in memory at its most, on Linux."""
    import resource  # noqa: PLC0415 - other systems lack it

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@cache
def _c_library() -> Any:
    return ctypes.CDLL(None) if sys.platform == "linux" else None


def cache_last_results(
    method: Callable[[_Key], _Made], max_results: int
) -> Callable[[_Key], _Made]:
    """Return a function that calls a method of an object, and keeps up to `max_results` results.

    ``lru_cache`` itself would hold the object, which holds it: all that both hold, mapped files with
    their descriptors, too, would stay until cycles are looked for.
    """
    weak_method = WeakMethod(method)

    @lru_cache(max_results)
    def call(key: _Key) -> _Made:
        bound_method = weak_method()
        assert bound_method is not None  # it makes the call
        return bound_method(key)

    return call


@dataclass
class _Entries:
    """Results of one kind by key, and the number of array rows that they hold."""

    result_by_key: dict[Hashable, Any] = field(default_factory=dict)
    row_count: int = 0


class BoundedCache:
    """Results that serve again within one pass over a run: processes of one program share most columns.

    Whoever makes the pass owns it and hands it down. Sent to another process, it is empty there.

    Args:
        rows: For how many rows of arrays there is room, for each kind of result; when they are more,
            all results of that kind are dropped.
    """

    def __init__(self, max_rows: int = _MOST_ROWS) -> None:
        self._max_rows = max_rows
        self._entries: dict[str, _Entries] = {}

    def __reduce__(self) -> tuple[type[BoundedCache], tuple[int]]:
        return BoundedCache, (self._max_rows,)

    def get(self, kind: str, key: Hashable) -> Any:
        """Return the result of a key; None if it was never kept, or was dropped."""
        entries = self._entries.get(kind)
        return entries and entries.result_by_key.get(key)

    def put(self, kind: str, key: Hashable, result: Any, rows: int) -> None:
        """Keep a result of `rows` array rows, if there is room."""
        if rows > self._max_rows:
            return
        entries = self._entries.setdefault(kind, _Entries())
        if entries.row_count + rows > self._max_rows:
            entries = self._entries[kind] = _Entries()
        entries.result_by_key[key] = result
        entries.row_count += rows

    def get_or_make(
        self,
        kind: str,
        arrays: Sequence[NDArray[Any]],
        make: Callable[[], _Made],
        *arguments: Hashable,
    ) -> _Made:
        """Return the result of `make`, called once for the same arguments and read-only arrays."""
        if any(array.flags.writeable for array in arrays):
            return make()
        key = (*arguments, *map(id, arrays))
        entry = self.get(kind, key)
        if entry is None:
            new_result = make()
            entry = new_result, arrays  # keeps the arrays alive, so that their ids are not reused
            row_counts = [len(array) for array in arrays]
            # The result may be an array that is longer than those it is made from.
            if hasattr(new_result, "dtype"):
                row_counts.append(len(new_result))  # type: ignore[arg-type]
            self.put(kind, key, entry, max(row_counts, default=0))
        result: _Made = entry[0]
        return result
