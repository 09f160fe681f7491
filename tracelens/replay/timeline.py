"""The time of all training threads on one line, each worker's behind that of the one before.

What is asked of arrays of some hundred pieces costs by the call, so it is asked of all workers at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from tracelens.accounting.categories import CATEGORIES
from tracelens.accounting.pieces import covered_before
from tracelens.caching import cached_property
from tracelens.model.columns import FOREVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.accounting.pieces import WorkerPieces
    from tracelens.arrays import Array, Flags, Floats, Ints

__all__ = ["IS_BACKPROP", "IS_BLOCKED", "Timeline"]

# share of a blocked stretch: what another thread noted so soon after its end
# ended it [chosen; one decision in Timeline.notice, Timeline.has_resumed]
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
    """The pieces of all workers on one line.

    Moment t of a worker is at `worker * period_ns + t - origin_ns` there. `bounds` are where pieces
    begin, in order. Behind the last piece of each worker is an entry that is none.
    """

    pieces: Sequence[WorkerPieces]
    origin_ns: int
    period_ns: int
    bounds: Ints

    @classmethod
    def from_pieces(cls, pieces: Sequence[WorkerPieces]) -> Self:
        """Put the pieces of workers onto a line; there is at least one worker."""
        origin_ns = min(int(one.bounds[0]) for one in pieces)
        period_ns = max(int(one.bounds[-1]) for one in pieces) - origin_ns + 1
        begins_ns = np.arange(len(pieces)) * period_ns - origin_ns
        counts = [len(one.bounds) for one in pieces]
        bounds = np.concatenate([one.bounds for one in pieces]) + np.repeat(begins_ns, counts)
        return cls(pieces, origin_ns, period_ns, bounds)

    def locate(self, worker: Ints, moments: Ints) -> Ints:
        """Return where moments of workers are on the line, those beyond its ends at them."""
        since = np.clip(moments, self.origin_ns, self.origin_ns + self.period_ns - 1)
        return np.asarray(worker * self.period_ns + (since - self.origin_ns), np.int64)

    def moments_at(self, positions: Ints) -> Ints:
        """Return the moments that are at positions on the line, ns."""
        return positions % self.period_ns + self.origin_ns

    def workers_at(self, positions: Ints) -> Ints:
        """Return the workers whose time is at positions on the line."""
        return positions // self.period_ns

    @cached_property
    def category(self) -> Array:
        """What each piece is; `_NO_PIECE` behind a worker's last one."""
        return self._join([one.category for one in self.pieces])

    @cached_property
    def name(self) -> Array:
        """What each piece is called."""
        return self._join([one.name for one in self.pieces])

    @cached_property
    def window(self) -> Ints:
        """The step window of each piece, counted over all workers."""
        windows = [len(one.packed.of_step) - 1 for one in self.pieces]
        before = np.cumsum([0, *windows[:-1]])
        lengths = [len(one.step) for one in self.pieces]
        step = np.concatenate([one.step for one in self.pieces])
        return np.asarray(self._join([step + np.repeat(before, lengths)]), np.int64)

    def _join(self, parts: Sequence[Array]) -> Array:
        values = np.concatenate(parts)
        lasts = np.cumsum([len(one.bounds) for one in self.pieces]) - 1
        joined = np.full(len(self.bounds), _NO_PIECE, np.result_type(values, np.int8))
        is_piece = np.ones(len(joined), np.bool_)
        is_piece[lasts] = False
        joined[is_piece] = values
        return joined

    def is_in(self, counts: Flags) -> Flags:
        """Return which pieces are in some categories (flags); none behind a worker's last one is."""
        return np.append(counts, False)[self.category]

    def find_stretches(self, inside: Flags) -> tuple[Ints, Ints]:
        """Return begins and ends of the stretches of some pieces (flags)."""
        edges = self.bounds[np.flatnonzero(np.diff(inside, prepend=False))]
        return edges[::2], edges[1::2]

    @cached_property
    def waits(self) -> tuple[Ints, Ints]:
        """Begins and ends of the stretches in which threads were blocked in a span."""
        return self.find_stretches(self.is_in(IS_BLOCKED) & (self.name >= 0))

    @cached_property
    def blocked(self) -> tuple[Ints, Ints]:
        """Begins and ends of the stretches in which threads were blocked."""
        return self.find_stretches(self.is_in(IS_BLOCKED))

    @cached_property
    def _blocked(self) -> tuple[Ints, Ints]:
        """The same stretches, after one before the line: each position has one that began before."""
        begins, ends = self.blocked
        return np.append(-2, begins), np.append(-1, ends)

    def spent_before(self, counts: Flags, positions: Ints) -> Floats:
        """Return how much of some categories (flags) had passed at positions, of all workers before."""
        return covered_before(*self.find_stretches(self.is_in(counts)), positions)

    def blocked_since(self, positions: Ints) -> Ints:
        """Return since when a thread was blocked until some positions; these where it was not."""
        begins, ends = self._blocked
        row = np.searchsorted(begins, positions) - 1
        return np.where(positions <= ends[row], begins[row], positions)

    def blocked_until(self, positions: Ints) -> Ints:
        """Return until when a thread was blocked from some positions on; these where it was not."""
        begins, ends = self._blocked
        row = np.searchsorted(begins, positions, side="right") - 1
        return np.maximum(positions, ends[row])

    def notice(self, worker: Ints, begun: Ints, end: Ints) -> Ints:
        """Return when threads noticed that something was over, which another thread noted later.

        That is the end of the stretch in which they were blocked until just before, as seen from its
        length; else it is when it was noted.
        """
        begins, ends = self._blocked
        noted = self.locate(worker, end)
        row = np.searchsorted(ends, noted) - 1
        late_ns = noted - ends[row]
        is_noticed = late_ns <= MAX_DELAY_OF_NOTICE * (ends - begins)[row]
        is_noticed &= noted <= np.append(begins, FOREVER)[row + 1]
        is_noticed &= ends[row] > self.locate(worker, begun)
        return np.where(is_noticed, end - late_ns, end)

    def looked_late(self, worker: Ints, over: Ints, end: Ints) -> Flags:
        """Return of what was over before threads waited for it, though they saw it when they did.

        That is seen from how short they had waited by its `end`, beside how long it was `over`.
        """
        begins, ends = self._blocked
        noted = self.locate(worker, end)
        row = np.searchsorted(begins, noted) - 1
        is_blocked = (noted <= ends[row]) & (begins[row] > self.locate(worker, over))
        waited_ns = noted - begins[row]
        return np.asarray(is_blocked & (waited_ns <= MAX_WAIT_IF_ALREADY_OVER * (end - over)))

    def has_resumed(self, worker: Ints, over: Ints, until: Ints) -> Flags:
        """Return which threads waited in a span until something was over, and went on before `until`."""
        begins, ends = (np.append(-1, edges) for edges in self.waits)
        over, until = self.locate(worker, over), self.locate(worker, until)
        row = np.searchsorted(ends, until, side="right") - 1
        early_ns = over - ends[row]
        return np.asarray(
            (begins[row] < over) & (early_ns <= MAX_DELAY_OF_NOTICE * (over - begins[row]))
        )

    def first_updates(self) -> Ints:
        """Return where threads began to update weights, once a step of a worker."""
        rows = np.flatnonzero(self.category == _UPDATE)
        is_first = np.diff(self.window[rows], prepend=-1) != 0
        return np.asarray(self.bounds[rows[is_first]])
