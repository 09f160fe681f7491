"""Where a thread waits for communication in flight, and no span of its own says so.

A thread that waits for a call goes on when the call is over. So in a stretch without a span, it can have
waited until the last end of a call there; later time is its own work. Stretches before the same
span are judged together. The thread does not wait there if it goes on while calls are in flight. Where
it goes on later than calls are over, lengths tell: waiting lengthens a stretch by as much as calls end
later, work does not. If that is not clear, a thread that elsewhere goes on as soon as calls are over did
not wait here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.model.intervals import Intervals

if TYPE_CHECKING:
    from tracelens.accounting.spans import Spans
    from tracelens.arrays import Flags, Indices, Ints

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
    """Stretches of a thread without a span, in which calls are in flight, [stretch], ns.

    `next_name` is the name of the span that ends each. The last call that ends in a stretch does so at
    `call_end`, which is `begin` if none does.
    """

    next_name: Ints
    begin: Ints
    call_end: Ints
    end: Ints

    @property
    def length(self) -> Ints:
        return self.end - self.begin

    @property
    def delay(self) -> Ints:
        """How long after their begin the last call is over."""
        return self.call_end - self.begin

    def find_waits(self) -> Flags:
        """Find the stretches in which the thread may have waited for the calls."""
        has_end = self.delay > 0
        is_prompt = has_end & (self.end - self.call_end <= MAX_SHARE_AFTER_CALL * self.length)
        waits = np.zeros(len(self.begin), np.bool_)
        order = np.argsort(self.next_name, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(self.next_name[order])) + 1):
            ended = rows[has_end[rows]]
            before_end_ns = self.length[rows].sum() - self.length[ended].sum()
            if before_end_ns > MAX_SHARE_BEFORE_END * self.length[rows].sum():
                continue
            follows_calls = is_prompt[ended].all() or self._follow_calls(ended)
            if follows_calls is None:
                follows_calls = not is_prompt.any()
            waits[ended] = follows_calls | is_prompt[ended]
        return waits

    def _follow_calls(self, rows: Indices) -> bool | None:
        """Return True if stretches are longer where calls end later; None if that is not clear."""
        delay, length = (ns[rows] - ns[rows].mean() for ns in (self.delay, self.length))
        variance = float((delay**2).sum())
        if len(rows) < 3 or not variance:
            return None
        slope = float((delay * length).sum()) / variance
        residuals = length - slope * delay
        error = float(np.sqrt((residuals**2).sum() / (len(rows) - 2) / variance))
        is_clear = abs(slope - MIN_SLOPE_IF_WAITING) > STANDARD_ERRORS_OF_SLOPE * error
        return slope > MIN_SLOPE_IF_WAITING if is_clear else None


def find_unshown_waits(spans: Spans, flights: Intervals, first: int, last: int) -> Intervals:
    """Return when a thread may have waited for calls in flight in stretches without a span.

    Args:
        spans: Those of the thread, outer ones before inner ones.
        flights: The calls whose waits no span shows.
        first: When the thread's time begins, ns.
        last: When it ends.
    """
    if not len(flights.start):
        return flights
    stretches = _find_stretches(spans, flights.sort_edges(), np.array([first, last]))
    waits = stretches.find_waits()
    return Intervals(stretches.begin[waits], stretches.call_end[waits])


def _find_stretches(spans: Spans, edges: Intervals, bounds: Ints) -> _Stretches:
    """Find the stretches without a span in which calls are in flight, by the calls' sorted edges."""
    start, end = (np.concatenate([side, bounds]) for side in (spans.start, spans.end))
    name = np.append(spans.name, np.full(len(bounds), -1))
    order = np.argsort(start, kind="stable")
    covered_until, next_span = np.maximum.accumulate(end[order])[:-1], order[1:]
    is_gap = covered_until < start[next_span]
    begin, next_span = covered_until[is_gap], next_span[is_gap]
    end = start[next_span]
    # Another thread may note the end of a call when the waiting one has gone on already.
    latest_end = end + (MAX_SHARE_AFTER_CALL * (end - begin)).astype(np.int64)
    call = np.searchsorted(edges.end, latest_end, side="right") - 1
    call_end = np.where(call >= 0, np.clip(edges.end[call], begin, end), begin)
    in_flight = np.searchsorted(edges.start, end) > np.searchsorted(edges.end, end)
    rows = np.flatnonzero((call_end > begin) | in_flight)
    return _Stretches(name[next_span[rows]], begin[rows], call_end[rows], end[rows])
