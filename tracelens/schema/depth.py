"""How deep a span is nested: the number of spans of its thread that were open when it began."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["by_thread", "depths"]


def depths(
    thread: NDArray[Any], start: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Count, for each event, the earlier spans of its thread that end after it starts.

    Of two that start together the longer one counts as earlier, of equal ones the first given. What
    takes no time holds nothing. On a track of operations in flight this is how many overlap.
    """
    found = np.zeros(len(start), np.int64)
    for chosen in by_thread(thread, start, end):
        found[chosen] = _depths_of_thread(start[chosen], end[chosen])
    return found


def by_thread(
    thread: NDArray[Any], start: NDArray[np.int64], end: NDArray[np.int64]
) -> list[NDArray[np.intp]]:
    """Return the events of each thread, in the order in which they began; the longer one first."""
    if (np.diff(start) > 0).all():  # as records mostly are
        order = np.argsort(thread.astype(np.uint16), kind="stable")
    else:
        order = np.lexsort((-end, start, thread))
    bounds = np.flatnonzero(np.diff(thread[order], prepend=-1, append=-1))
    return [order[first:last] for first, last in itertools.pairwise(bounds)]


def _depths_of_thread(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count starts before each event minus ends before it; sorted by start, longest first."""
    holds = end > start
    begun: NDArray[np.int64] = np.cumsum(holds) - holds
    ended: NDArray[np.int64] = np.searchsorted(np.sort(end[holds]), start, side="right")
    return begun - ended
