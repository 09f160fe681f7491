"""A server's two queues: a processor that serves in turn, and a link that messages share evenly."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

__all__ = ["in_turn", "link_time", "shared"]

Floats = npt.NDArray[np.float64]


def in_turn(able: Floats, work: Floats) -> Floats:
    """Return when each is served, one after the other."""
    done = np.cumsum(work)
    return np.asarray(np.maximum.accumulate(able - (done - work)) + done)


def link_time(begin: Floats, end: Floats) -> Floats:
    """Return what part of a link's time each message had, if those at once had equal parts."""
    edges = np.unique(np.concatenate([begin, end]))
    first, last = np.searchsorted(edges, begin), np.searchsorted(edges, end)
    change = np.bincount(first, minlength=len(edges)) - np.bincount(last, minlength=len(edges))
    share = np.diff(edges) / np.maximum(np.cumsum(change)[:-1], 1)
    until = np.concatenate([[0.0], np.cumsum(share)])
    return np.asarray(until[last] - until[first])


def shared(come: Floats, work: Floats) -> Floats:
    """Return when each message is through, which needs so much of the link's time.

    `given` is the time that each message there has had since the first one; who came with more of it
    to go is through later.
    """
    through = [0.0] * len(come)
    there: list[tuple[float, int]] = []
    now = given = 0.0
    times, works = come.tolist(), work.tolist()
    for one in np.argsort(come, kind="stable").tolist():
        time, count = times[one], len(there)
        while count:
            until, first = there[0]
            done = now + (until - given) * count
            if done > time:
                given += (time - now) / count
                break
            through[first] = done
            now, given, count = done, until, count - 1
            heappop(there)
        now = time
        heappush(there, (given + works[one], one))
    for left, (until, first) in enumerate(sorted(there)):
        now += (until - given) * (len(there) - left)
        through[first], given = now, until
    return np.array(through)
