"""A link that several messages share: all on it get equal parts, and less gets done the more it has."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tracelens.simulator.durations import Nanoseconds


def shared(arrive: Nanoseconds, alone: Nanoseconds, incast: float) -> Nanoseconds:
    """Return when each message is through.

    Args:
        arrive: When each comes.
        alone: What each takes if it has the link for itself.
        incast: n messages together get 1 / (1 + `incast` (n - 1)) of the link's work done.
    """
    order = np.argsort(arrive, kind="stable")
    times, works = arrive[order].astype(float).tolist(), alone[order].astype(float).tolist()
    through = np.zeros(len(times))
    on_it: list[tuple[float, int]] = []  # by how much work each message has had when it is through
    had, now, upcoming = 0.0, 0.0, 0
    while on_it or upcoming < len(times):
        count = len(on_it)
        pace = 1 / (count * (1 + incast * (count - 1))) if count else 0.0
        done = now + (on_it[0][0] - had) / pace if count else np.inf
        if upcoming < len(times) and times[upcoming] <= done:
            had, now = had + (times[upcoming] - now) * pace, times[upcoming]
            heappush(on_it, (had + works[upcoming], upcoming))
            upcoming += 1
        else:
            had, message = heappop(on_it)
            now = through[message] = done
    result = np.empty(len(times), np.int64)
    result[order] = np.rint(through)
    return result
