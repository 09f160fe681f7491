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
    """A thread's spans, [span]: begin and end, ns, what each means, and a number for its name.

    `code` is a category, or another code of `categories`.
    """

    start: Ints
    end: Ints
    code: Array
    name: Array

    @classmethod
    def empty(cls) -> Self:
        """Return no spans."""
        return cls(*np.empty((4, 0), np.int64))

    def clip(self, first_ns: int, last_ns: int) -> Spans:
        """Cut to a window and sort: outer spans before the inner ones."""
        start_ns, end_ns = np.maximum(self.start, first_ns), np.minimum(self.end, last_ns)
        clipped = Spans(start_ns, end_ns, self.code, self.name)
        has_length = start_ns < end_ns
        if not has_length.all():
            clipped = clipped.take(np.flatnonzero(has_length))
        start_change, end_change = np.diff(clipped.start), np.diff(clipped.end)
        if not np.all((start_change > 0) | ((start_change == 0) & (end_change <= 0))):
            clipped = clipped.take(np.lexsort((-clipped.end, clipped.start)))
        return clipped

    def take(self, rows: Indices) -> Spans:
        """Return some of them."""
        return Spans(self.start[rows], self.end[rows], self.code[rows], self.name[rows])

    def resolve_blocking(self, *busy: Intervals) -> Spans:
        """Make blocking spans communication if any is recorded in them (`busy`), else waiting.

        Codes become 16 bits, names 32, as the sweep expects them.
        """
        codes = self.code.astype(np.int16)
        blocked_spans = np.flatnonzero(codes == BLOCKED)
        if len(blocked_spans):
            start_ns, end_ns = self.start[blocked_spans], self.end[blocked_spans]
            begun_count = sum(np.searchsorted(part.start, end_ns) for part in busy)
            ended_count = sum(np.searchsorted(part.end, start_ns, "right") for part in busy)
            codes[blocked_spans] = np.where(begun_count == ended_count, WAIT, COMMUNICATION)
        return Spans(self.start, self.end, codes, self.name.astype(np.int32))


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Concurrent activity of the rank: waits, shard queues, communication, other causes.

    `stopped`: when communication in flight stops the rank where no span covers its time. `device` is the
    own work that was timed on a device.
    """

    wait: Intervals
    queue: Intervals
    flying: Intervals
    stopped: Intervals
    cause: Intervals
    device: Spans = field(default_factory=Spans.empty)

    @property
    def covers(self) -> tuple[Intervals, ...]:
        """Intervals that cover a moment for any activity of the thread."""
        return self.wait, self.queue, self.flying, self.stopped, self.cause

    def clip(self, first_ns: int, last_ns: int) -> Surroundings:
        """Cut to a window; begins and ends are in order, and blocking spans of the device resolved."""
        covers = (cover.clip(first_ns, last_ns).sort_edges() for cover in self.covers)
        wait, queue, flying, stopped, cause = covers
        device = self.device.clip(first_ns, last_ns).resolve_blocking(flying)
        return Surroundings(wait, queue, flying, stopped, cause, device)


class Pieces(NamedTuple):
    """Touching pieces of time: boundaries (one more than pieces), and what each piece is, [piece]."""

    bounds: Ints
    step: Int32s  # index of the step window
    category: Int8s
    name: Int32s
    spent: Ints  # nanoseconds, [step window, category]
    hidden: Ints  # nanoseconds of communication under own work, [step window]

    def without_gaps(self, gaps: Ints) -> Pieces:
        """Give windows that are gaps (indices) to the ones before, as time without a record."""
        if not len(gaps):
            return self
        is_step = np.ones(len(self.hidden), np.bool_)
        is_step[gaps] = False
        step_of_window = np.cumsum(is_step, dtype=np.int32) - 1
        spent_ns, is_in_step = self.spent[is_step], is_step[self.step]
        spent_ns[step_of_window[gaps], UNINSTRUMENTED] += self.spent[gaps].sum(axis=1)
        return self._replace(
            step=step_of_window[self.step],
            category=np.where(is_in_step, self.category, np.int8(UNINSTRUMENTED)),
            name=np.where(is_in_step, self.name, np.int32(NOTHING)),
            spent=spent_ns,
            hidden=self.hidden[is_step],
        )
