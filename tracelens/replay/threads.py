"""Training threads as events, and the work between them.

An event is a begin or an end of a message or collective, or the end of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import polars as pl

from tracelens.caching import cached_property
from tracelens.replay.timeline import IS_BLOCKED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.replay.timeline import Timeline

__all__ = ["Sides", "Threads"]


class Sides(NamedTuple):
    """Workers' sides of messages or collectives, [side]: the worker, and its begin and end, ns.

    `is_blocking` is true if the worker's training thread was in it.
    """

    workers: Ints
    begin_ns: Ints
    end_ns: Ints
    is_blocking: Flags

    @classmethod
    def from_times(cls, workers: Ints, times_ns: Ints, *, is_blocking: bool = False) -> Sides:
        """Make sides without length."""
        return cls(workers, times_ns, times_ns, np.full(len(times_ns), is_blocking))

    @classmethod
    def join(cls, parts: Iterable[Sides]) -> Sides:
        """Concatenate sides."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def take(self, rows: Indices | Flags) -> Sides:
        """Return the sides of some rows."""
        return Sides._make(column[rows] for column in self)

    def to_positions(self, timeline: Timeline) -> tuple[Ints, Ints]:
        """Return the positions of begins and of ends on the line of the workers, both [side]."""
        begins, ends = (
            timeline.to_positions(self.workers, ns) for ns in (self.begin_ns, self.end_ns)
        )
        return begins, ends

    def end_when_noticed(self, timeline: Timeline) -> Sides:
        """Let sides in flight end when their training threads noticed it."""
        noticed_ns = timeline.find_notice_times_ns(self.workers, self.begin_ns, self.end_ns)
        return self._replace(end_ns=np.where(self.is_blocking, self.end_ns, noticed_ns))


@dataclass(frozen=True, eq=False)
class Threads:
    """The events of training threads, numbered one thread after the other, and the intervals between.

    `event_positions` are those on the `timeline`, [event]; thread i, of worker i, has the events from
    `first_events[i]` to `first_events[i + 1]`. An interval lies between two events of a thread;
    `is_communicating` is true if the thread was in a message or collective, [interval]. `is_wait_end`
    is true for events at which something in flight was over for which the thread was blocked, [event].
    `step_numbers` are those of all workers' steps, worker by worker, with `step_end_positions`.
    """

    timeline: Timeline
    event_positions: Ints
    first_events: Ints
    is_communicating: Flags
    is_wait_end: Flags
    step_numbers: Ints
    step_end_positions: Ints

    @classmethod
    def from_sides(
        cls, timeline: Timeline, worker_steps: Sequence[pl.DataFrame], sides: Sequence[Sides]
    ) -> Self:
        """Find each worker's events: ends of its steps, a row each, and begins and ends of sides."""
        joined = Sides.join(sides)
        # Positions on the timeline are a worker and a time.
        begin_position, end_position = joined.to_positions(timeline)
        is_blocking, all_steps = joined.is_blocking, pl.concat(worker_steps)
        counts = [of_worker.height for of_worker in worker_steps]
        worker_of_step = np.repeat(np.arange(len(worker_steps)), counts)
        step_begins, step_ends = (
            timeline.to_positions(worker_of_step, all_steps[name].to_numpy())
            for name in ("start_ns", "end_ns")
        )
        wait_ends = end_position[
            ~is_blocking & (timeline.find_blocked_begins(end_position) < end_position)
        ]
        thread_begins = step_begins[np.cumsum([0, *counts[:-1]])]
        positions = np.unique(
            np.concatenate(
                [thread_begins, step_ends, begin_position, end_position[is_blocking], wait_ends]
            )
        )
        worker_begins = np.arange(len(worker_steps) + 1) * timeline.period_ns  # positions
        first_events = np.searchsorted(positions, worker_begins)
        entered_counts, left_counts = (
            np.bincount(
                np.searchsorted(positions, positions_of_sides[is_blocking]),
                minlength=len(positions),
            )
            for positions_of_sides in (begin_position, end_position)
        )
        is_wait_end = np.zeros(len(positions), np.bool_)
        is_wait_end[np.searchsorted(positions, wait_ends)] = True
        return cls(
            timeline=timeline,
            event_positions=positions,
            first_events=first_events,
            is_communicating=np.delete(
                np.cumsum(entered_counts - left_counts) > 0, first_events[1:] - 1
            ),
            is_wait_end=is_wait_end,
            step_numbers=all_steps["step"].to_numpy().astype(np.int64),
            step_end_positions=step_ends,
        )

    @property
    def worker_count(self) -> int:
        """The number of workers, each with one training thread."""
        return len(self.first_events) - 1

    @property
    def event_count(self) -> int:
        """The number of events of all threads."""
        return len(self.event_positions)

    @property
    def event_times_ns(self) -> Ints:
        """When each event occurred, [event]."""
        return self.timeline.to_times_ns(self.event_positions)

    @cached_property
    def interval_begin_events(self) -> Ints:
        """The event at which each interval begins, [interval]; it ends at the next event."""
        return np.delete(np.arange(self.event_count), self.first_events[1:] - 1)

    @cached_property
    def worker_of_interval(self) -> Ints:
        """The worker of each interval, [interval]."""
        return self.find_workers(self.interval_begin_events)

    @cached_property
    def interval_lengths_ns(self) -> Ints:
        """The length of each interval, [interval]."""
        return np.asarray(np.diff(self.event_positions)[self.interval_begin_events])

    def find_workers(self, events: Ints) -> Ints:
        """Return the worker of each of some events of threads."""
        return np.searchsorted(self.first_events, events, side="right") - 1

    def sum_intervals_by_worker(self, values: Floats) -> Floats:
        """Sum values of intervals, [interval], by their worker, [worker]."""
        sums = np.bincount(self.worker_of_interval, values, minlength=self.worker_count)
        return sums.astype(np.float64)

    def measure_categories_ns(self, categories: Flags) -> Floats:
        """Return the time in some categories (flags) in each interval, [interval]."""
        before_event_ns = self.timeline.sum_ns_before(categories, self.event_positions)
        return np.diff(before_event_ns)[self.interval_begin_events]

    def measure_work_ns(self, categories: Flags = ~IS_BLOCKED) -> Floats:
        """Return the same, but nothing in intervals in a message or collective."""
        return np.where(self.is_communicating, 0.0, self.measure_categories_ns(categories))

    def assign_to_end_events(self, values: Floats) -> Floats:
        """Return values of intervals by the event that ends each, [event]; 0 at a thread's first one."""
        by_event = np.zeros(self.event_count)
        by_event[self.interval_begin_events + 1] = values
        return by_event

    def chain_events(self, caused_events: Ints) -> tuple[Ints, Ints, Ints]:
        """Return sources, targets and lags, ns, [edge], that join neighbouring events of threads.

        The lag includes the time for which a thread was blocked before an event. `caused_events` have
        other causes, too, so their lags leave it out.
        """
        is_caused = np.zeros(self.event_count, np.bool_)
        is_caused[caused_events[caused_events < self.event_count]] = True
        has_explained_wait = (self.is_wait_end & is_caused)[self.interval_begin_events + 1]
        unblocked_ns = self.measure_categories_ns(~IS_BLOCKED)
        lag_ns = np.where(has_explained_wait, unblocked_ns, self.interval_lengths_ns)
        # Edges of the message or collective itself say how long that takes.
        lag_ns = np.where(self.is_communicating, 0, lag_ns).astype(np.int64)
        return self.interval_begin_events, self.interval_begin_events + 1, lag_ns

    def find_side_events(self, sides: Sides) -> tuple[Ints, Ints]:
        """Return the events at which sides begin and end; see `find_events`."""
        return (
            self.find_events(sides.workers, sides.begin_ns),
            self.find_events(sides.workers, sides.end_ns),
        )

    def find_events(self, workers: Ints, times_ns: Ints) -> Ints:
        """Return the event of each worker at a time; -1 where its thread has none."""
        position = self.timeline.to_positions(workers, times_ns)
        event = np.minimum(np.searchsorted(self.event_positions, position), self.event_count - 1)
        return np.where(self.event_positions[event] == position, event, -1)

    def find_next_need_events(self, workers: Ints, times_ns: Ints) -> Ints:
        """Return the event from which on a worker needs what was over at a time, ns, all [query].

        Then it next was blocked by something in flight, began to update weights, or ended the step; -1
        where no step follows.
        """
        position = self.timeline.to_positions(workers, times_ns)
        needs = np.append(self._need_positions, np.iinfo(np.int64).max)  # positions
        next_need = needs[np.searchsorted(self._need_positions, position)]
        is_of_worker = self.timeline.to_workers(next_need) == workers
        return np.where(is_of_worker, np.searchsorted(self.event_positions, next_need), -1)

    @cached_property
    def _need_positions(self) -> Ints:
        """The positions, ascending, of the events that `find_next_need_events` finds."""
        updates = self.timeline.find_update_begins()
        known_updates = updates[np.isin(updates, self.event_positions)]
        ends_of_waits = self.event_positions[self.is_wait_end]
        return np.unique(np.concatenate([ends_of_waits, self.step_end_positions, known_updates]))

    def find_step_end_events(self, step_numbers: Ints) -> Ints:
        """Return the events at which some steps end, [step, worker]; -1 where a worker lacks one."""
        step_row = self._find_step_rows(step_numbers)  # [step of a worker]
        is_known = step_row >= 0
        events = np.full((len(step_numbers), self.worker_count), -1, np.int64)
        end_positions = self.step_end_positions[is_known]
        cells = step_row[is_known], self.timeline.to_workers(end_positions)
        events[cells] = np.searchsorted(self.event_positions, end_positions)
        return events

    def find_interval_step_rows(self, step_numbers: Ints) -> Ints:
        """Return the row in `step_numbers` of each interval's step; -1 outside of these."""
        interval_positions = self.event_positions[self.interval_begin_events]
        step = np.searchsorted(self.step_end_positions, interval_positions, side="right")
        return self._find_step_rows(step_numbers)[step]

    def find_step_numbers(self, workers: Ints, times_ns: Ints) -> Ints:
        """Return the number of the step at each worker's time; -1 outside of steps."""
        position = self.timeline.to_positions(workers, times_ns)
        step = np.searchsorted(self.step_end_positions, position, side="right")
        return np.append(self.step_numbers, -1)[step]

    def _find_step_rows(self, step_numbers: Ints) -> Ints:
        """Return the row in `step_numbers` of each step of a worker, [step of a worker]; else -1."""
        row = np.searchsorted(step_numbers, self.step_numbers)
        return np.where(np.append(step_numbers, -1)[row] == self.step_numbers, row, -1)
