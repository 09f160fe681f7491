"""What servers do for requests: which operations occupy a processor, and how busy a server is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.arrays import Floats, Ints

__all__ = ["PROCESSOR_OPS", "SERVICE_OPS", "measure_link_time", "sum_work_until"]

PROCESSOR_OPS: Final = ("aggregate", "apply")
SERVICE_OPS: Final = (*PROCESSOR_OPS, "reply")


def measure_link_time(begin: Ints | Floats, end: Ints | Floats, crowding: float = 0.0) -> Floats:
    """Return how much of a link's time each message had, if messages at once had equal shares of it.

    With `crowding` above 0, n messages at once get 1 / (1 + crowding (n - 1)) of the link together.
    """
    edges = np.unique(np.concatenate([begin, end]))
    first, last = np.searchsorted(edges, begin), np.searchsorted(edges, end)
    change = np.bincount(first, minlength=len(edges)) - np.bincount(last, minlength=len(edges))
    crowd = np.maximum(np.cumsum(change)[:-1], 1)
    share = np.diff(edges) / (crowd * (1 + crowding * (crowd - 1)))
    until = np.concatenate([[0.0], np.cumsum(share)])
    return np.asarray(until[last] - until[first])


def sum_work_until(start: Ints, end: Ints) -> Callable[[Ints], Floats]:
    """Return what tells how long a server was at work until a moment; work is sorted by its start."""
    reached = np.maximum.accumulate(end)
    begin = np.maximum(start, np.concatenate([start[:1], reached[:-1]]))
    length = np.maximum(end - begin, 0)
    before = np.concatenate([[0], np.cumsum(length)])

    def sum_until(moment: Ints) -> Floats:
        last = np.searchsorted(begin, moment, side="right")
        inside = np.clip(moment - begin[last - 1], 0, length[last - 1])
        return np.where(last > 0, before[last - 1] + inside, 0).astype(np.float64)

    return sum_until
