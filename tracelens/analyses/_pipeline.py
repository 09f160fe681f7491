"""How much of a rank's delay the pipeline absorbs: reductions in flight are played again without it.

While a reduction is under way beside backprop, a rank that comes late to the next one delays nobody as
long as it comes before that is through (Li et al. 2019: pipelining mitigates stragglers, partially).
Calls hold the wire one after the other: a call goes when its last rank has come and the one before is
through. What of a step's end moves, beyond what the last arrival does, is the pipeline's doing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses._calls import training_threads
from tracelens.analyses._own_time import AFTER
from tracelens.analyses._segments import spent_before
from tracelens.schema.vocabulary import FULL_COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.analyses._late import Late
    from tracelens.analyses._own_time import OwnTime
    from tracelens.analyses.phases import Phases, Segments
    from tracelens.trace import Trace

__all__ = ["Pipeline"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BLOCKING: Final = (
    0.1  # of the steps with calls that stop the training thread: then it is no pipeline
)
_COLUMNS: Final = ("step", "process", "thread", "last_arrival_ns", "start_ns", "end_ns")
WAITS_FIRST: Final = 0.05  # of a step that the thread waits before its last call: nor then,
GOES_ON: Final = 0.25  # nor where it works for so much of a step after it


@dataclass(frozen=True)
class _Calls:
    """Calls of steps that have equally many: arrivals since the rank left the step before, and wire.

    `rows` are rows of `OwnTime`; `came` is [step, call, rank], `wire` [step, call], nanoseconds;
    `left_ns` is when each rank left the step before, [step, rank].
    """

    rows: Ints
    came: Floats
    wire: Floats
    left_ns: Ints

    def gain(self, sooner: Floats) -> Floats:
        """Return by how much more a step is shorter if ranks come `sooner`, than its last arrival."""
        before, after = self.came, self.came - sooner
        of_last = before[:, -1].max(axis=1) - after[:, -1].max(axis=1)
        return np.asarray(_through(before, self.wire) - _through(after, self.wire) - of_last)


@dataclass(frozen=True)
class Pipeline:
    """The reductions that run beside the training thread, and the pieces of its time."""

    own: OwnTime
    calls: tuple[_Calls, ...]
    pieces: Segments

    @classmethod
    def of(cls, trace: Trace, phases: Phases, own: OwnTime) -> Pipeline | None:
        """Take the calls in flight of all ranks; None where they are no pipeline as above.

        That is where the last call of a step does not come about when a rank has done its own work: the
        training thread waits before it, or goes on for long, beside calls that end in the next step.
        """
        calls = tuple(_by_count(trace, own))
        if not calls:
            return None
        work = np.nan_to_num(own.total).max(axis=1)
        late = [part.came[:, -1].max(axis=1) - work[part.rows] for part in calls]
        usual = float(np.median(np.concatenate(late)))
        fits = -GOES_ON * own.step_ns <= usual <= WAITS_FIRST * own.step_ns
        return cls(own, calls, phases.pieces) if fits else None

    def further(self, late: Late, effect: Floats) -> Floats:
        """Return by how much more than without pipeline each step is shorter without `effect`.

        Args:
            late: Who is late, and in what.
            effect: Nanoseconds that mending takes away, [step, rank].

        Returns:
            Nanoseconds, [step]; negative where reductions under way absorb the lateness.
        """
        more = np.zeros(len(self.own.steps))
        if late.phase in AFTER:  # over before the next step's first call
            return more
        for part in self.calls:
            whole = effect[part.rows][:, None, :]
            if late.pattern in ("sparse", "rotating"):
                sooner = _beyond_peers(part.came, whole)
            else:
                sooner = whole * self._done(part, late)
            more[part.rows] = part.gain(sooner)
        return more

    def _done(self, part: _Calls, late: Late) -> Floats:
        """Return what share of the late phases each rank had behind it at each call."""
        own, names = self.own, (late.phase, *late.also)
        values = np.nan_to_num(own.own[[name in names for name in own.phases]].sum(axis=0))
        steps = own.steps[part.rows]
        pieces = pl.concat([self.pieces.of(name, steps) for name in names]).sort("start_ns")
        done = np.zeros_like(part.came)
        for rank in np.flatnonzero(late.effect.any(axis=0)):
            inside = pieces.filter(pl.col("rank") == own.ranks[rank])
            left = part.left_ns[:, rank]
            at = left[:, None] + part.came[:, :, rank].astype(np.int64)
            since = spent_before(inside, at) - spent_before(inside, left)[:, None]
            done[:, :, rank] = since / np.maximum(values[part.rows, rank], 1.0)[:, None]
        return np.clip(done, 0.0, 1.0)


def _through(came: Floats, wire: Floats) -> Floats:
    """Return when the last call of each step is through."""
    free = np.zeros(len(came))
    for call in range(wire.shape[1]):
        free = np.asarray(np.maximum(came[:, call].max(axis=1), free) + wire[:, call])
    return free


def _beyond_peers(came: Floats, effect: Floats) -> Floats:
    """Return what of an effect in single steps had happened by each call: its lead over the median."""
    return np.clip(came - np.median(came, axis=2, keepdims=True), 0.0, effect)


def _by_count(trace: Trace, own: OwnTime) -> Iterator[_Calls]:
    """Take calls in flight of all ranks apart by how many a step has; each needs a step before it."""
    ranks = len(own.ranks)
    rows = trace.arrivals.filter(
        pl.col("step").is_in(own.steps.tolist()),
        pl.col("op").is_in(FULL_COLLECTIVES),
        pl.col("arrived") == pl.col("expected"),
        pl.col("expected") == ranks,
        pl.col("last_arrival_ns").is_not_null(),
    )
    column = {  # all rows of a call stand together
        name: rows[name].fill_null(0).to_numpy().reshape(-1, ranks) for name in _COLUMNS
    }
    number = column["step"][:, 0]
    stops = column["thread"] == training_threads(trace)[column["process"]]
    blocking = np.isin(number, number[stops.any(axis=1)])
    open_ = rows["end_ns"].is_null().to_numpy().reshape(-1, ranks).any(axis=1)
    steps = np.unique(number)
    if len(np.unique(number[blocking])) > BLOCKING * len(steps):
        return
    order = np.lexsort((column["last_arrival_ns"][:, 0], number))
    order = order[~(blocking | open_)[order]]
    by_rank = np.searchsorted(trace.workers["process"].sort(), trace.workers["process"])
    start, end = (column[name][order][:, by_rank].astype(np.int64) for name in _COLUMNS[-2:])
    yield from _taken_apart(own.steps, number[order], start, end)


def _taken_apart(numbers: Ints, step: Ints, start: Ints, end: Ints) -> Iterator[_Calls]:
    found, first, count = np.unique(step, return_index=True, return_counts=True)
    if not len(found):
        return
    left = np.maximum.reduceat(end, first, axis=0)
    follows = np.flatnonzero(np.diff(found, prepend=found[0] - 2) == 1)
    for many in np.unique(count[follows]):
        chosen = follows[count[follows] == many]
        rows = first[chosen][:, None] + np.arange(many)
        before = left[chosen - 1]
        yield _Calls(
            rows=np.searchsorted(numbers, found[chosen]),
            came=(start[rows] - before[:, None, :]).astype(np.float64),
            wire=_wire(start[rows], end[rows]),
            left_ns=before,
        )


def _wire(start: Ints, end: Ints) -> Floats:
    """Return how long each call held the wire: the shortest of its ranks' times since it was free."""
    free = np.concatenate([start[:, :1], end[:, :-1]], axis=1)
    since = np.where(free < end, np.maximum(start, free), start)
    return np.asarray((end - since).min(axis=2), np.float64)
