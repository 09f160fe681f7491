"""The time of all training threads on one line, each worker's behind that of the one before.

A position on the line is a worker and a time. Queries of small arrays cost by the call, so a query is
made for all workers in one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from tracelens.accounting.categories import CATEGORIES
from tracelens.accounting.pieces import sum_covered_ns_before
from tracelens.caching import cached_property
from tracelens.model.columns import FOREVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.accounting.pieces import WorkerPieces
    from tracelens.arrays import Array, Flags, Floats, Ints

__all__ = ["IS_BACKPROP", "IS_BLOCKED", "Timeline"]

# share of a blocked stretch: what another thread noted so soon after its end
# ended it [chosen; one decision in Timeline.find_notice_times_ns,
# Timeline.has_resumed]
MAX_DELAY_OF_NOTICE: Final = 0.05
# share of the time since the end: a thread that waited no longer looked only when all
# was over [chosen]
MAX_WAIT_IF_ALREADY_OVER: Final = 0.05
IS_BACKPROP: Final = np.isin(CATEGORIES, "backprop")
IS_BLOCKED: Final = np.isin(CATEGORIES, ("wait", "ps_queue", "transfer"))
_NO_PIECE: Final = -1  # code: what stands behind the last piece of a worker [definition]
_UPDATE: Final = CATEGORIES.index("update")


@dataclass(frozen=True, eq=False)
class Timeline:
    """The pieces of all workers on one line, ns.

    Time t of a worker is at position `worker * period_ns + t - origin_ns`. `bound_positions`, [bound],
    are the begins of all pieces, and after the last piece of each worker its end, which is no piece.
    """

    worker_pieces: Sequence[WorkerPieces]
    origin_ns: int
    period_ns: int
    bound_positions: Ints

    @classmethod
    def from_pieces(cls, pieces: Sequence[WorkerPieces]) -> Self:
        """Put the pieces of at least one worker onto a line."""
        origin_ns = min(int(worker.bounds_ns[0]) for worker in pieces)
        period_ns = max(int(worker.bounds_ns[-1]) for worker in pieces) - origin_ns + 1
        shifts_ns = np.arange(len(pieces)) * period_ns - origin_ns
        counts = [len(worker.bounds_ns) for worker in pieces]
        bounds_ns = np.concatenate([worker.bounds_ns for worker in pieces])
        return cls(
            worker_pieces=pieces,
            origin_ns=origin_ns,
            period_ns=period_ns,
            bound_positions=bounds_ns + np.repeat(shifts_ns, counts),
        )

    def to_positions(self, workers: Ints, times_ns: Ints) -> Ints:
        """Return the positions of workers at times, ns, clipped to the ends of each worker's time."""
        clipped_ns = np.clip(times_ns, self.origin_ns, self.origin_ns + self.period_ns - 1)
        return np.asarray(workers * self.period_ns + (clipped_ns - self.origin_ns), np.int64)

    def to_times_ns(self, positions: Ints) -> Ints:
        """Return the times at positions, ns."""
        return positions % self.period_ns + self.origin_ns

    def to_workers(self, positions: Ints) -> Ints:
        """Return the workers at positions."""
        return positions // self.period_ns

    @cached_property
    def category_codes(self) -> Array:
        """The category of each piece, [bound]; `_NO_PIECE` behind a worker's last one."""
        return self._pad([worker.category_codes for worker in self.worker_pieces])

    @cached_property
    def name_numbers(self) -> Array:
        """The number of each piece's name, [bound]; below 0 where it has none."""
        return self._pad([worker.name_codes for worker in self.worker_pieces])

    @cached_property
    def step_indices(self) -> Ints:
        """The index of each piece's step among those of all workers, worker by worker, [bound]."""
        step_counts = [len(pieces.first_piece_of_window) - 1 for pieces in self.worker_pieces]
        first_steps = np.cumsum([0, *step_counts[:-1]])  # of each worker
        workers = zip(self.worker_pieces, first_steps, strict=True)
        indices = [pieces.window_indices + first_step for pieces, first_step in workers]
        return np.asarray(self._pad(indices), np.int64)

    def _pad(self, columns: Sequence[Array]) -> Array:
        """Join a column of each worker's pieces, with `_NO_PIECE` behind each worker's last one."""
        dtype = np.result_type(*{column.dtype for column in columns}, np.int8)
        end = np.full(1, _NO_PIECE, dtype)
        return np.concatenate([part for column in columns for part in (column.astype(dtype), end)])

    def is_in_categories(self, categories: Flags) -> Flags:
        """Return True for pieces in some categories (flags), [bound]."""
        return np.append(categories, False)[self.category_codes]

    def find_stretches(self, is_inside: Flags) -> tuple[Ints, Ints]:
        """Return begins and ends (positions) of stretches of pieces with a flag, [bound]."""
        changes = self.bound_positions[np.flatnonzero(np.diff(is_inside, prepend=False))]
        return changes[::2], changes[1::2]

    @cached_property
    def wait_stretches(self) -> tuple[Ints, Ints]:
        """Begins and ends (positions) of the stretches in which threads were blocked in a span."""
        return self.find_stretches(self.is_in_categories(IS_BLOCKED) & (self.name_numbers >= 0))

    @cached_property
    def blocked_stretches(self) -> tuple[Ints, Ints]:
        """Begins and ends (positions) of the stretches in which threads were blocked."""
        return self.find_stretches(self.is_in_categories(IS_BLOCKED))

    @cached_property
    def _padded_blocked(self) -> tuple[Ints, Ints]:
        """The same, with an empty stretch before the line, so that one begins before each position."""
        begins, ends = self.blocked_stretches
        return np.append(-2, begins), np.append(-1, ends)

    def sum_ns_before(self, categories: Flags, positions: Ints) -> Floats:
        """Return the time in some categories (flags) before positions, summed over all workers, ns."""
        return sum_covered_ns_before(
            *self.find_stretches(self.is_in_categories(categories)), positions
        )

    def find_blocked_begins(self, positions: Ints) -> Ints:
        """Return the begin (a position) of the blocked stretch at each position; itself without one."""
        begins, ends = self._padded_blocked
        row = np.searchsorted(begins, positions) - 1
        return np.where(positions <= ends[row], begins[row], positions)

    def find_blocked_ends(self, positions: Ints) -> Ints:
        """Return the end (a position) of the blocked stretch at each position; itself without one."""
        begins, ends = self._padded_blocked
        row = np.searchsorted(begins, positions, side="right") - 1
        return np.maximum(positions, ends[row])

    def find_notice_times_ns(self, workers: Ints, begin_ns: Ints, end_ns: Ints) -> Ints:
        """Return when threads noticed the ends of operations that another thread noted, ns, [operation].

        That is the end of the blocked stretch just before, if the note follows it soon, as seen from the
        stretch's length; else it is the noted end.
        """
        begins, ends = self._padded_blocked  # positions of blocked stretches
        noted_end = self.to_positions(workers, end_ns)
        row = np.searchsorted(ends, noted_end) - 1  # the last stretch before each noted end
        delay_ns = noted_end - ends[row]
        is_noticed = delay_ns <= MAX_DELAY_OF_NOTICE * (ends - begins)[row]
        # A thread that is blocked again when the end is noted may not have noticed it.
        is_noticed &= noted_end <= np.append(begins, FOREVER)[row + 1]
        is_noticed &= ends[row] > self.to_positions(workers, begin_ns)
        return np.where(is_noticed, end_ns - delay_ns, end_ns)

    def has_looked_late(self, workers: Ints, over_ns: Ints, end_ns: Ints) -> Flags:
        """Return True where an operation was over before its thread waited for it, all [operation].

        Then the thread waited until `end_ns` for only a small share of the time since `over_ns`.
        """
        begins, ends = self._padded_blocked  # positions of blocked stretches
        end = self.to_positions(workers, end_ns)
        row = np.searchsorted(begins, end) - 1  # the last stretch that began before each end
        began_later = (end <= ends[row]) & (begins[row] > self.to_positions(workers, over_ns))
        waited_ns = end - begins[row]
        return np.asarray(
            began_later & (waited_ns <= MAX_WAIT_IF_ALREADY_OVER * (end_ns - over_ns))
        )

    def has_resumed(self, workers: Ints, over_ns: Ints, until_ns: Ints) -> Flags:
        """Return True where a worker waited in a span until `over_ns`, and resumed by `until_ns`.

        All are arrays of one shape; times are ns.
        """
        begins, ends = (np.append(-1, positions) for positions in self.wait_stretches)
        over, until = (self.to_positions(workers, ns) for ns in (over_ns, until_ns))  # positions
        row = np.searchsorted(ends, until, side="right") - 1  # the last stretch that ended by then
        early_ns = over - ends[row]
        return np.asarray(
            (begins[row] < over) & (early_ns <= MAX_DELAY_OF_NOTICE * (over - begins[row]))
        )

    def find_update_begins(self) -> Ints:
        """Return the positions at which workers begin to update weights, once a step."""
        rows = np.flatnonzero(self.category_codes == _UPDATE)
        is_first = np.diff(self.step_indices[rows], prepend=-1) != 0
        return np.asarray(self.bound_positions[rows[is_first]])
