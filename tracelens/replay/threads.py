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

    worker: Ints
    begin_ns: Ints
    end_ns: Ints
    is_blocking: Flags

    @classmethod
    def from_times(cls, worker: Ints, times_ns: Ints, *, is_blocking: bool = False) -> Sides:
        """Make sides without length."""
        return cls(worker, times_ns, times_ns, np.full(len(times_ns), is_blocking))

    @classmethod
    def join(cls, parts: Iterable[Sides]) -> Sides:
        """Concatenate sides."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def take(self, rows: Indices | Flags) -> Sides:
        """Return the sides of some rows."""
        return Sides._make(column[rows] for column in self)

    def locate(self, timeline: Timeline) -> tuple[Ints, Ints]:
        """Return the positions of begins and ends on the line of the workers."""
        return timeline.locate(self.worker, self.begin_ns), timeline.locate(
            self.worker, self.end_ns
        )

    def end_when_noticed(self, timeline: Timeline) -> Sides:
        """Let sides in flight end when their training threads noticed it."""
        noticed_ns = timeline.notice(self.worker, self.begin_ns, self.end_ns)
        return self._replace(end_ns=np.where(self.is_blocking, self.end_ns, noticed_ns))


@dataclass(frozen=True, eq=False)
class Threads:
    """The events of training threads, numbered one thread after the other, and the intervals between.

    `positions` are those of events on the `timeline`; thread i has the events from `first_events[i]` to
    `first_events[i + 1]`. An interval lies between two events of a thread; `is_communicating` is true if
    the thread was in a message or collective, [interval]. `ends_wait` is true for events at which
    something in flight was over for which the thread was blocked, [event]. `steps` are the numbers of
    all workers' steps, worker by worker, and `step_ends` the positions of their ends.
    """

    timeline: Timeline
    positions: Ints
    first_events: Ints
    is_communicating: Flags
    ends_wait: Flags
    steps: Ints
    step_ends: Ints

    @classmethod
    def from_sides(
        cls, timeline: Timeline, worker_steps: Sequence[pl.DataFrame], sides: Sequence[Sides]
    ) -> Self:
        """Find each worker's events: ends of its steps, a row each, and begins and ends of sides."""
        joined = Sides.join(sides)
        # Positions on the timeline are a worker and a time.
        (begin_position, end_position), is_blocking = joined.locate(timeline), joined.is_blocking
        counts = [of_worker.height for of_worker in worker_steps]
        all_steps, worker_of_step = (
            pl.concat(worker_steps),
            np.repeat(np.arange(len(worker_steps)), counts),
        )
        step_begins, step_ends = (
            timeline.locate(worker_of_step, all_steps[name].to_numpy())
            for name in ("start_ns", "end_ns")
        )
        wait_ends = end_position[
            ~is_blocking & (timeline.blocked_since(end_position) < end_position)
        ]
        thread_begins = step_begins[np.cumsum([0, *counts[:-1]])]
        positions = np.unique(
            np.concatenate(
                [thread_begins, step_ends, begin_position, end_position[is_blocking], wait_ends]
            )
        )
        first_events = np.searchsorted(
            positions, np.arange(len(worker_steps) + 1) * timeline.period_ns
        )
        entered_counts, left_counts = (
            np.bincount(
                np.searchsorted(positions, positions_of_sides[is_blocking]),
                minlength=len(positions),
            )
            for positions_of_sides in (begin_position, end_position)
        )
        ends_wait = np.zeros(len(positions), np.bool_)
        ends_wait[np.searchsorted(positions, wait_ends)] = True
        return cls(
            timeline=timeline,
            positions=positions,
            first_events=first_events,
            is_communicating=np.delete(
                np.cumsum(entered_counts - left_counts) > 0, first_events[1:] - 1
            ),
            ends_wait=ends_wait,
            steps=all_steps["step"].to_numpy().astype(np.int64),
            step_ends=step_ends,
        )

    def __len__(self) -> int:
        return len(self.first_events) - 1

    @property
    def event_count(self) -> int:
        """The number of events of all threads."""
        return len(self.positions)

    @property
    def event_times_ns(self) -> Ints:
        """When each event occurred."""
        return self.timeline.to_times_ns(self.positions)

    @cached_property
    def sources(self) -> Ints:
        """The event at which each interval begins; it ends at the next event."""
        return np.delete(np.arange(self.event_count), self.first_events[1:] - 1)

    @cached_property
    def owners(self) -> Ints:
        """The worker of each interval."""
        return self.find_owners(self.sources)

    @cached_property
    def lengths_ns(self) -> Ints:
        """The length of each interval."""
        return np.asarray(np.diff(self.positions)[self.sources])

    def find_owners(self, events: Ints) -> Ints:
        """Return the worker of each of some events of threads."""
        return np.searchsorted(self.first_events, events, side="right") - 1

    def sum_by_thread(self, values: Floats) -> Floats:
        """Sum values of intervals by thread."""
        return np.bincount(self.owners, values, minlength=len(self)).astype(np.float64)

    def measure_time_ns(self, categories: Flags) -> Floats:
        """Return the time in some categories (flags) in each interval."""
        return np.diff(self.timeline.spent_before(categories, self.positions))[self.sources]

    def measure_work_ns(self, categories: Flags = ~IS_BLOCKED) -> Floats:
        """Return the same, but nothing in intervals in a message or collective."""
        return np.where(self.is_communicating, 0.0, self.measure_time_ns(categories))

    def assign_to_ends(self, values: Floats) -> Floats:
        """Return values of intervals by the event that ends each, [event]; 0 at a thread's first one."""
        by_event = np.zeros(self.event_count)
        by_event[self.sources + 1] = values
        return by_event

    def chain_events(self, caused_events: Ints) -> tuple[Ints, Ints, Ints]:
        """Return sources, targets and lags, ns, of the edges that join neighbouring events of threads.

        The time for which a thread was blocked before an event is part of the lag, unless that is one of
        `caused_events`, which follow other ones, too.
        """
        is_caused = np.zeros(self.event_count, np.bool_)
        is_caused[caused_events[caused_events < self.event_count]] = True
        has_explained_wait = (self.ends_wait & is_caused)[self.sources + 1]
        lag_ns = np.where(has_explained_wait, self.measure_time_ns(~IS_BLOCKED), self.lengths_ns)
        lag_ns = np.where(self.is_communicating, 0, lag_ns).astype(np.int64)
        return self.sources, self.sources + 1, lag_ns

    def find_sides(self, sides: Sides) -> tuple[Ints, Ints]:
        """Return the events at which sides begin and end; see `find_events`."""
        return (
            self.find_events(sides.worker, sides.begin_ns),
            self.find_events(sides.worker, sides.end_ns),
        )

    def find_events(self, worker: Ints, times_ns: Ints) -> Ints:
        """Return the event of each worker at a time; -1 where its thread has none."""
        position = self.timeline.locate(worker, times_ns)
        event = np.minimum(np.searchsorted(self.positions, position), self.event_count - 1)
        return np.where(self.positions[event] == position, event, -1)

    def find_next_needs(self, worker: Ints, times_ns: Ints) -> Ints:
        """Return the event from which on each worker needs what was over at a time, ns.

        Then it next was blocked by something in flight, began to update weights, or ended the step; -1
        where no step follows.
        """
        needs = np.append(self._needs, np.iinfo(np.int64).max)  # positions of a worker and a time
        next_need = needs[np.searchsorted(self._needs, self.timeline.locate(worker, times_ns))]
        is_of_worker = self.timeline.to_workers(next_need) == worker
        return np.where(is_of_worker, np.searchsorted(self.positions, next_need), -1)

    @cached_property
    def _needs(self) -> Ints:
        """The positions at which threads need what was in flight, ascending; see `find_next_needs`."""
        updates = self.timeline.find_first_updates()
        known_updates = updates[np.isin(updates, self.positions)]
        ends_of_waits = self.positions[self.ends_wait]
        return np.unique(np.concatenate([ends_of_waits, self.step_ends, known_updates]))

    def find_step_ends(self, steps: Ints) -> Ints:
        """Return the events at which some steps end, [step, worker]; -1 where a worker lacks one."""
        step_row = self._find_step_rows(steps)
        is_known = step_row >= 0
        events = np.full((len(steps), len(self)), -1, np.int64)
        worker = self.timeline.to_workers(self.step_ends)[is_known]
        events[step_row[is_known], worker] = np.searchsorted(
            self.positions, self.step_ends[is_known]
        )
        return events

    def find_rows(self, steps: Ints) -> Ints:
        """Return the row in `steps` of each interval's step; -1 outside of these."""
        window = np.searchsorted(self.step_ends, self.positions[self.sources], side="right")
        return self._find_step_rows(steps)[window]

    def find_steps(self, worker: Ints, times_ns: Ints) -> Ints:
        """Return the number of the step at each worker's time; -1 outside of steps."""
        position = self.timeline.locate(worker, times_ns)
        window = np.searchsorted(self.step_ends, position, side="right")
        return np.append(self.steps, -1)[window]

    def _find_step_rows(self, steps: Ints) -> Ints:
        """Return the row in `steps` of each worker's step, [step of a worker]; -1 outside of these."""
        row = np.searchsorted(steps, self.steps)
        return np.where(np.append(steps, -1)[row] == self.steps, row, -1)
