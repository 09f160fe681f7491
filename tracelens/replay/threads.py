"""Training threads as moments, and the work between them.

A moment is a begin or an end of what a thread exchanges with others, or the end of a step.
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

    Edges = tuple[Ints, Ints, Ints]  # sources, targets and lags

__all__ = ["Sides", "Threads"]


class Sides(NamedTuple):
    """Messages on one side, or ranks in collectives: of which worker, from when until when.

    `stops` says whether its training thread was in it.
    """

    worker: Ints
    begin: Ints
    end: Ints
    stops: Flags

    @classmethod
    def at(cls, worker: Ints, moments: Ints, *, stops: bool = False) -> Sides:
        """Make moments of workers, without length."""
        return cls(worker, moments, moments, np.full(len(moments), stops))

    @classmethod
    def join(cls, parts: Iterable[Sides]) -> Sides:
        """Put some one after the other."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def take(self, rows: Indices | Flags) -> Sides:
        """Return some of them."""
        return Sides(self.worker[rows], self.begin[rows], self.end[rows], self.stops[rows])

    def locate(self, timeline: Timeline) -> tuple[Ints, Ints]:
        """Return where begins and ends are on the line of the workers."""
        return timeline.locate(self.worker, self.begin), timeline.locate(self.worker, self.end)

    def noticed(self, timeline: Timeline) -> Sides:
        """Return them with ends in flight when training threads noticed them."""
        end = timeline.notice(self.worker, self.begin, self.end)
        return self._replace(end=np.where(self.stops, self.end, end))

    def within(self, first: Ints, last: Ints) -> Flags:
        """Return which lie in the steps of their worker."""
        return (self.begin >= first[self.worker]) & (self.end <= last[self.worker])


@dataclass(frozen=True, eq=False)
class Threads:
    """The training threads: their moments, numbered one thread after the other, and what lies between.

    `positions` are where moments are on the `timeline`; thread i has those from number `begins[i]` on,
    and after the last one `begins` has their count. What lies between two of a thread is an interval:
    `stopped` says in which it was in a message or collective. `arrives` says at which moments something
    in flight was over for which it was blocked. `steps` have `ends` on the line, worker by worker.
    """

    timeline: Timeline
    positions: Ints
    begins: Ints
    stopped: Flags
    arrives: Flags
    steps: Ints
    ends: Ints

    @classmethod
    def from_sides(
        cls, timeline: Timeline, steps: Sequence[pl.DataFrame], sides: Sequence[Sides]
    ) -> Self:
        """Find the moments among the steps of each worker and what it exchanged."""
        joined = Sides.join(sides)
        (begin, end), stops = joined.locate(timeline), joined.stops
        counts = [part.height for part in steps]
        table, owner = pl.concat(steps), np.repeat(np.arange(len(steps)), counts)
        starts, ends = (
            timeline.locate(owner, table[name].to_numpy()) for name in ("start_ns", "end_ns")
        )
        arrived = end[~stops & (timeline.blocked_since(end) < end)]
        firsts = starts[np.cumsum([0, *counts[:-1]])]
        positions = np.unique(np.concatenate([firsts, ends, begin, end[stops], arrived]))
        begins = np.searchsorted(positions, np.arange(len(steps) + 1) * timeline.period_ns)
        entered, left = (
            np.bincount(np.searchsorted(positions, at[stops]), minlength=len(positions))
            for at in (begin, end)
        )
        is_stopped = np.cumsum(entered - left) > 0
        arrives = np.zeros(len(positions), np.bool_)
        arrives[np.searchsorted(positions, arrived)] = True
        return cls(
            timeline=timeline,
            positions=positions,
            begins=begins,
            stopped=np.delete(is_stopped, begins[1:] - 1),
            arrives=arrives,
            steps=table["step"].to_numpy().astype(np.int64),
            ends=ends,
        )

    def __len__(self) -> int:
        return len(self.begins) - 1

    @property
    def moment_count(self) -> int:
        """How many moments all threads have."""
        return len(self.positions)

    @property
    def moments(self) -> Ints:
        """When each moment was, ns."""
        return self.timeline.moments_at(self.positions)

    @cached_property
    def sources(self) -> Ints:
        """The moment at which each interval begins; it ends at the next one."""
        return np.delete(np.arange(self.moment_count), self.begins[1:] - 1)

    @cached_property
    def owners(self) -> Ints:
        """The worker of each interval."""
        return self.find_owners(self.sources)

    def find_owners(self, moments: Ints) -> Ints:
        """Return the worker of each of some moments, by their numbers."""
        return np.searchsorted(self.begins, moments, side="right") - 1

    def sum_by_thread(self, values: Floats) -> Floats:
        """Add values of intervals up by thread."""
        return np.bincount(self.owners, values, minlength=len(self)).astype(np.float64)

    @property
    def passed(self) -> Floats:
        """How long threads worked in each interval: nothing in a message or collective."""
        return np.where(self.stopped, 0.0, self.measure_spent(~IS_BLOCKED))

    def measure_spent(self, counts: Flags) -> Floats:
        """Return how much of some categories (flags) lies in each interval, ns."""
        return np.diff(self.timeline.spent_before(counts, self.positions))[self.sources]

    def add_after_moments(self, values: Floats) -> Floats:
        """Return values of intervals by the moment at which each ends; 0 at the first of a thread."""
        of_moments = np.zeros(self.moment_count)
        of_moments[self.sources + 1] = values
        return of_moments

    def order(self, caused: Ints) -> Edges:
        """Return that each moment of a thread follows the one before it; `caused` follow others, too.

        What a thread was blocked before one that is caused, it is as long as that takes.
        """
        is_caused = np.zeros(self.moment_count, np.bool_)
        is_caused[caused[caused < self.moment_count]] = True
        is_open = (self.arrives & is_caused)[self.sources + 1]
        lasted_ns = np.diff(self.positions)[self.sources]
        lag = np.where(is_open, self.measure_spent(~IS_BLOCKED), lasted_ns)
        return self.sources, self.sources + 1, np.where(self.stopped, 0, lag).astype(np.int64)

    def find_both(self, sides: Sides) -> tuple[Ints, Ints]:
        """Return the numbers of the moments at which each begins and ends; see `find`."""
        return self.find(sides.worker, sides.begin), self.find(sides.worker, sides.end)

    def find(self, worker: Ints, moment: Ints) -> Ints:
        """Return the number of a moment of each of some workers; -1 where it is none of its thread."""
        position = self.timeline.locate(worker, moment)
        number = np.minimum(np.searchsorted(self.positions, position), self.moment_count - 1)
        return np.where(self.positions[number] == position, number, -1)

    def find_needed(self, worker: Ints, moment: Ints) -> Ints:
        """Return the number of the moment from which on a thread needs what was over before.

        That is when it next was blocked by something in flight, or began to update weights, or ended
        the step; -1 where no step follows.
        """
        needs = np.append(self._needs, np.iinfo(np.int64).max)
        need = needs[np.searchsorted(self._needs, self.timeline.locate(worker, moment))]
        is_known = self.timeline.workers_at(need) == worker
        return np.where(is_known, np.searchsorted(self.positions, need), -1)

    @cached_property
    def _needs(self) -> Ints:
        """Where on the line threads need what was in flight; see `find_needed`."""
        updates = self.timeline.first_updates()
        known = updates[np.isin(updates, self.positions)]
        return np.unique(np.concatenate([self.positions[self.arrives], self.ends, known]))

    def find_ends(self, steps: Ints) -> Ints:
        """Return the moments at which some steps end, [step, worker], -1 where a worker lacks one."""
        row = self._rows_of_windows(steps)
        numbers = np.full((len(steps), len(self)), -1, np.int64)
        owner = self.timeline.workers_at(self.ends)
        is_known = row >= 0
        ends = np.searchsorted(self.positions, self.ends)
        numbers[row[is_known], owner[is_known]] = ends[is_known]
        return numbers

    def find_rows(self, steps: Ints) -> Ints:
        """Return the step of each interval, as a row of `steps`; -1 of none."""
        window = np.searchsorted(self.ends, self.positions[self.sources], side="right")
        return self._rows_of_windows(steps)[window]

    def find_steps(self, worker: Ints, moment: Ints) -> Ints:
        """Return the number of the step in which each moment of some workers is; -1 of none."""
        window = np.searchsorted(self.ends, self.timeline.locate(worker, moment), side="right")
        return np.append(self.steps, -1)[window]

    def _rows_of_windows(self, steps: Ints) -> Ints:
        row = np.searchsorted(steps, self.steps)
        return np.where(np.append(steps, -1)[row] == self.steps, row, -1)
