"""Where a thread waits for communication in flight, and no span of its own says so.

A thread that waits for a call goes on when the call is over. So in a stretch without a span, it can have
waited until the last end of a call there; later time is its own work. Stretches before the same
span are judged together. The thread does not wait there if it goes on while calls are in flight, unless
it mostly goes on as soon as they are over: then the thread of a call was kept from its core before it
noted the end. Where it goes on later than calls are over, lengths tell: waiting lengthens a stretch by
as much as calls end later, work does not. If that is not clear, a thread that elsewhere goes on as soon
as calls are over did not wait here.
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
# share of the stretches' time: a thread waits if it goes on as soon as calls are over in more [chosen]
MIN_PROMPT_SHARE: Final = 0.5
# share of calls' delays: stretches that become longer by more wait for the calls [chosen]
MIN_SLOPE_IF_WAITING: Final = 0.5
# standard errors: a slope that is closer to that is not clear [chosen]
STANDARD_ERRORS_OF_SLOPE: Final = 2.0


@dataclass(frozen=True, eq=False)
class _Stretches:
    """Stretches of a thread without a span, in which calls are in flight, [stretch], ns.

    `next_name_code` is the name of the span that ends each. The last call that ends in a stretch does so
    at `call_end_ns`, which is `begin_ns` if none does. `call_index` is that of the call in flight at its
    begin that ends first.
    """

    next_name_code: Ints
    begin_ns: Ints
    call_end_ns: Ints
    end_ns: Ints
    call_index: Ints

    @property
    def length_ns(self) -> Ints:
        return self.end_ns - self.begin_ns

    @property
    def delay_ns(self) -> Ints:
        """How long after their begin the last call is over."""
        return self.call_end_ns - self.begin_ns

    @property
    def is_longest_of_call(self) -> Flags:
        """True for the longest stretch that begins while a call is in flight, [stretch]."""
        by_length = np.lexsort((self.length_ns, self.call_index))
        is_last = np.diff(self.call_index[by_length], append=-1) != 0
        is_longest = np.zeros(len(by_length), np.bool_)
        is_longest[by_length[is_last]] = True
        return is_longest

    def find_waits(self) -> Intervals:
        """Return when the thread may have waited for the calls.

        Stretches before the same span are judged together.
        """
        has_end = self.delay_ns > 0
        is_prompt = has_end & (
            self.end_ns - self.call_end_ns <= MAX_SHARE_AFTER_CALL * self.length_ns
        )
        is_wait = np.zeros(len(self.begin_ns), np.bool_)
        by_name = np.argsort(self.next_name_code, kind="stable")
        for group in np.split(by_name, np.flatnonzero(np.diff(self.next_name_code[by_name])) + 1):
            with_end = group[has_end[group]]
            total_ns = self.length_ns[group].sum()
            before_end_ns = total_ns - self.length_ns[with_end].sum()
            prompt_ns = self.length_ns[group[is_prompt[group]]].sum()
            if before_end_ns > MAX_SHARE_BEFORE_END * total_ns:
                if prompt_ns <= MIN_PROMPT_SHARE * total_ns:
                    continue  # the thread goes on while calls are in flight
                is_wait[group] = self.is_longest_of_call[group]  # the end was noted late
            follows_calls = is_prompt[with_end].all() or self._are_lengthened_by_calls(with_end)
            if follows_calls is None:
                follows_calls = not is_prompt.any()
            is_wait[with_end] = follows_calls | is_prompt[with_end]
        wait_end_ns = np.where(has_end, self.call_end_ns, self.end_ns)
        return Intervals(self.begin_ns[is_wait], wait_end_ns[is_wait])

    def _are_lengthened_by_calls(self, stretches: Indices) -> bool | None:
        """Return True if stretches (indices) are longer where calls end later; None if unclear."""
        delay_deviation_ns, length_deviation_ns = (
            ns[stretches] - ns[stretches].mean() for ns in (self.delay_ns, self.length_ns)
        )
        delay_square_sum = float((delay_deviation_ns**2).sum())
        if len(stretches) < 3 or not delay_square_sum:
            return None
        slope = float((delay_deviation_ns * length_deviation_ns).sum()) / delay_square_sum
        residuals_ns = length_deviation_ns - slope * delay_deviation_ns
        error = float(np.sqrt((residuals_ns**2).sum() / (len(stretches) - 2) / delay_square_sum))
        is_clear = abs(slope - MIN_SLOPE_IF_WAITING) > STANDARD_ERRORS_OF_SLOPE * error
        return slope > MIN_SLOPE_IF_WAITING if is_clear else None


def find_unshown_waits(spans: Spans, flights: Intervals, first_ns: int, last_ns: int) -> Intervals:
    """Return when a thread may have waited for calls in flight in stretches without a span.

    Outer `spans` come before inner ones; `flights` are the calls whose waits none shows. The thread's
    time is from `first_ns` to `last_ns`.
    """
    if not len(flights.start_ns):
        return flights
    return _find_stretches(spans, flights.sort_edges(), np.array([first_ns, last_ns])).find_waits()


def _find_stretches(spans: Spans, flights: Intervals, limits_ns: Ints) -> _Stretches:
    """Find the stretches between two times (`limits_ns`) without a span in which calls are in flight.

    Begins and ends of `flights`, the calls, are each in order.
    """
    start_ns, end_ns = (np.concatenate([ns, limits_ns]) for ns in (spans.start_ns, spans.end_ns))
    name_code = np.append(spans.name_codes, np.full(len(limits_ns), -1))
    by_start = np.argsort(start_ns, kind="stable")
    covered_until_ns, next_span = np.maximum.accumulate(end_ns[by_start])[:-1], by_start[1:]
    is_gap = covered_until_ns < start_ns[next_span]
    begin_ns, next_span = covered_until_ns[is_gap], next_span[is_gap]
    end_ns = start_ns[next_span]
    # Another thread may note the end of a call when the waiting one has gone on already.
    latest_end_ns = end_ns + (MAX_SHARE_AFTER_CALL * (end_ns - begin_ns)).astype(np.int64)
    last_call = np.searchsorted(flights.end_ns, latest_end_ns, side="right") - 1
    call_end_ns = np.where(
        last_call >= 0, np.clip(flights.end_ns[last_call], begin_ns, end_ns), begin_ns
    )
    is_in_flight = np.searchsorted(flights.start_ns, end_ns) > np.searchsorted(
        flights.end_ns, end_ns
    )
    rows = np.flatnonzero((call_end_ns > begin_ns) | is_in_flight)
    return _Stretches(
        next_name_code=name_code[next_span[rows]],
        begin_ns=begin_ns[rows],
        call_end_ns=call_end_ns[rows],
        end_ns=end_ns[rows],
        call_index=np.searchsorted(flights.end_ns, begin_ns[rows], side="right"),
    )
