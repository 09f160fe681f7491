"""Spans and calls in flight, which divide a thread's time, and the resulting pieces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from tracelens.accounting.categories import BLOCKED, COMMUNICATION, NOTHING, UNINSTRUMENTED, WAIT

if TYPE_CHECKING:
    from tracelens.arrays import Array, Indices, Int8s, Int32s, Ints
    from tracelens.model.intervals import Intervals


@dataclass(frozen=True, eq=False)
class Spans:
    """A thread's spans, [span]: when each begins and ends, what it means, and an index of its name.

    `meaning_codes` are indices of `CATEGORIES`, or other codes of `categories.py`.
    """

    start_ns: Ints
    end_ns: Ints
    meaning_codes: Array
    name_codes: Array

    @classmethod
    def empty(cls) -> Self:
        """Return no spans."""
        return cls(*np.empty((4, 0), np.int64))

    def clip(self, first_ns: int, last_ns: int) -> Spans:
        """Cut to a window and sort: outer spans before the inner ones."""
        if not len(self.start_ns):
            return self
        start_ns, end_ns = np.maximum(self.start_ns, first_ns), np.minimum(self.end_ns, last_ns)
        clipped = Spans(start_ns, end_ns, self.meaning_codes, self.name_codes)
        has_length = start_ns < end_ns
        if not has_length.all():
            clipped = clipped.take(np.flatnonzero(has_length))
        start_change_ns, end_change_ns = np.diff(clipped.start_ns), np.diff(clipped.end_ns)
        if not np.all((start_change_ns > 0) | ((start_change_ns == 0) & (end_change_ns <= 0))):
            clipped = clipped.take(np.lexsort((-clipped.end_ns, clipped.start_ns)))
        return clipped

    def take(self, rows: Indices) -> Spans:
        """Return some of the spans."""
        columns = (self.start_ns, self.end_ns, self.meaning_codes, self.name_codes)
        return Spans(*(column[rows] for column in columns))

    def resolve_blocking(self, *communication: Intervals) -> Spans:
        """Make blocking spans communication if any is recorded in them, else waiting.

        Codes become 16 bits, names 32, as the sweep expects them.
        """
        codes = self.meaning_codes.astype(np.int16)
        blocked_spans = np.flatnonzero(codes == BLOCKED) if len(codes) else codes
        if len(blocked_spans):
            start_ns, end_ns = self.start_ns[blocked_spans], self.end_ns[blocked_spans]
            begun_count = sum(np.searchsorted(part.start_ns, end_ns) for part in communication)
            ended_count = sum(
                np.searchsorted(part.end_ns, start_ns, "right") for part in communication
            )
            codes[blocked_spans] = np.where(begun_count == ended_count, WAIT, COMMUNICATION)
        return Spans(
            self.start_ns,
            self.end_ns,
            meaning_codes=codes,
            name_codes=self.name_codes.astype(np.int32),
        )


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Concurrent activity of the rank: waits for others, queues at PS shards, communication in flight.

    In `stop_intervals`, communication in flight stops the rank where no span covers its time.
    `device_work` is the own work that was timed on a device.
    """

    wait_intervals: Intervals
    queue_intervals: Intervals
    flight_intervals: Intervals
    stop_intervals: Intervals
    idle_cause_intervals: Intervals
    device_work: Spans = field(default_factory=Spans.empty)

    @property
    def interval_sets(self) -> tuple[Intervals, ...]:
        """All of it but the work on a device."""
        return (
            self.wait_intervals,
            self.queue_intervals,
            self.flight_intervals,
            self.stop_intervals,
            self.idle_cause_intervals,
        )

    def clip(self, first_ns: int, last_ns: int) -> Surroundings:
        """Cut to a window; begins and ends are in order, and blocking spans of the device resolved."""
        waits, queues, flights, stops, idle_causes = (
            intervals.clip(first_ns, last_ns).sort_edges() for intervals in self.interval_sets
        )
        device_work = self.device_work.clip(first_ns, last_ns).resolve_blocking(flights)
        return Surroundings(
            wait_intervals=waits,
            queue_intervals=queues,
            flight_intervals=flights,
            stop_intervals=stops,
            idle_cause_intervals=idle_causes,
            device_work=device_work,
        )


class Pieces(NamedTuple):
    """Touching pieces of time: boundaries (one more than pieces), and what each piece is, [piece]."""

    bounds_ns: Ints
    window_indices: Int32s  # of the step windows
    category_codes: Int8s
    name_codes: Int32s
    spent_ns: Ints  # [step window, category]
    hidden_ns: Ints  # communication under own work, [step window]

    def without_gaps(self, gap_windows: Ints) -> Pieces:
        """Give windows between steps (`gap_windows`, indices) to those before, as unrecorded time."""
        if not len(gap_windows):
            return self
        is_step = np.ones(len(self.hidden_ns), np.bool_)
        is_step[gap_windows] = False
        step_of_window = np.cumsum(is_step, dtype=np.int32) - 1  # of a gap, the step before
        spent_ns, is_in_step = self.spent_ns[is_step], is_step[self.window_indices]
        gaps_ns = self.spent_ns[gap_windows].sum(axis=1)
        spent_ns[step_of_window[gap_windows], UNINSTRUMENTED] += gaps_ns
        return self._replace(
            window_indices=step_of_window[self.window_indices],
            category_codes=np.where(is_in_step, self.category_codes, np.int8(UNINSTRUMENTED)),
            name_codes=np.where(is_in_step, self.name_codes, np.int32(NOTHING)),
            spent_ns=spent_ns,
            hidden_ns=self.hidden_ns[is_step],
        )
