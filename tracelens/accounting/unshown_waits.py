"""Where a thread waits for communication in flight, and no span of its own says so.

A thread that waits for a call goes on when the call is over. So in a stretch without a span, it can have
waited until the last end of a call there, and what follows is its own work. Stretches before the same
span are judged together. The thread does not wait there if it goes on while calls are in flight. Where
it goes on later than calls are over, lengths tell: waiting lengthens a stretch by as much as calls end
later, work does not. If that is not clear, a thread that elsewhere goes on as soon as calls are over did
not wait here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.partition import Intervals

if TYPE_CHECKING:
    from tracelens.accounting.partition import Spans
    from tracelens.arrays import Flags, Indices, Ints

__all__ = ["find_unshown_waits"]

# share of a stretch without a span: it ends with a call if no more lies between their
# ends [chosen; one decision in _Stretches.find_waits, _find_stretches]
MAX_SHARE_AFTER_CALL: Final = 0.05
# share of the stretches' time: a thread that waits does not go on before calls are over in more [chosen]
MAX_SHARE_BEFORE_END: Final = 0.1
# share of calls' delays: stretches that become longer by more wait for the calls [chosen]
MIN_SLOPE_IF_WAITING: Final = 0.5
# standard errors: a slope that is closer to that is not clear [chosen]
STANDARD_ERRORS_OF_SLOPE: Final = 2.0


@dataclass(frozen=True, eq=False)
class _Stretches:
    """Stretches of threads without a span, in which calls are in flight.

    `kind` is the same for those of a thread that end with the same span. The last call that ends in a
    stretch does so at `until`, which is `begin` if none does.
    """

    thread: Ints
    kind: Ints
    begin: Ints
    until: Ints
    end: Ints

    @property
    def length(self) -> Ints:
        return self.end - self.begin

    @property
    def delay(self) -> Ints:
        """How long after their begin the last call is over."""
        return self.until - self.begin

    def find_waits(self) -> Flags:
        """Return in which of them threads may have waited for the calls."""
        has_end = self.delay > 0
        is_prompt = has_end & (self.end - self.until <= MAX_SHARE_AFTER_CALL * self.length)
        waits = np.zeros(len(self.begin), np.bool_)
        order, counts = np.argsort(self.kind, kind="stable"), np.bincount(self.kind)
        for rows in np.split(order, np.cumsum(counts)[:-1]):
            ended = rows[has_end[rows]]
            before_end_ns = self.length[rows].sum() - self.length[ended].sum()
            if before_end_ns > MAX_SHARE_BEFORE_END * self.length[rows].sum():
                continue
            follows_calls = is_prompt[ended].all() or self._follow_calls(ended)
            if follows_calls is None:
                follows_calls = not is_prompt[self.thread == self.thread[rows[0]]].any()
            waits[ended] = follows_calls | is_prompt[ended]
        return waits

    def _follow_calls(self, rows: Indices) -> bool | None:
        """Return whether some of them are longer where calls end later; None if that is not clear."""
        delay, length = (of[rows] - of[rows].mean() for of in (self.delay, self.length))
        variance = float((delay**2).sum())
        if len(rows) < 3 or not variance:
            return None
        slope = float((delay * length).sum()) / variance
        residuals = length - slope * delay
        error = float(np.sqrt((residuals**2).sum() / (len(rows) - 2) / variance))
        is_clear = abs(slope - MIN_SLOPE_IF_WAITING) > STANDARD_ERRORS_OF_SLOPE * error
        return slope > MIN_SLOPE_IF_WAITING if is_clear else None


def find_unshown_waits(spans: Spans, flights: Intervals, bounds: Ints) -> Intervals:
    """Return when threads may have waited for calls in flight in stretches without a span.

    Args:
        spans: Those of threads, outer ones before inner ones.
        flights: The calls whose waits no span shows.
        bounds: Where the time of each thread begins, and where that of the last one ends.
    """
    if not len(flights.start):
        return flights
    stretches = _find_stretches(spans, flights, bounds)
    waits = stretches.find_waits()
    return Intervals(stretches.begin[waits], stretches.until[waits])


def _find_stretches(spans: Spans, flights: Intervals, bounds: Ints) -> _Stretches:
    """Find the stretches without a span in which calls are in flight."""
    call_begins, call_ends = flights.edges()
    start, end = (np.concatenate([side, bounds]) for side in (spans.start, spans.end))
    name = np.append(spans.name, np.full(len(bounds), -1))
    order = np.argsort(start, kind="stable")
    covered_until, follows = np.maximum.accumulate(end[order])[:-1], order[1:]
    is_gap = covered_until < start[follows]
    begin_ns, follows = covered_until[is_gap], follows[is_gap]
    end = start[follows]
    # Another thread may note the end of a call when the waiting one has gone on already.
    noted = end + (MAX_SHARE_AFTER_CALL * (end - begin_ns)).astype(np.int64)
    call = np.searchsorted(call_ends, noted, side="right") - 1
    until_ns = np.where(call >= 0, np.clip(call_ends[call], begin_ns, end), begin_ns)
    calls_begun, calls_over = (np.searchsorted(edges, end) for edges in (call_begins, call_ends))
    has_call = (until_ns > begin_ns) | (calls_begun > calls_over)
    thread = np.searchsorted(bounds, begin_ns, side="right")
    _, kind = np.unique(np.stack([thread, name[follows]])[:, has_call], axis=1, return_inverse=True)
    return _Stretches(
        thread[has_call], kind.ravel(), begin_ns[has_call], until_ns[has_call], end[has_call]
    )
