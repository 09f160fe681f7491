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
WAITS_FIRST: Final = 0.05  # of a step that the thread waits before its last call: nor then


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
        """Take the calls in flight of all ranks; None where the training thread waits between calls."""
        table = _table(trace, own)
        if table is None:
            return None
        calls = tuple(_by_count(table, own.steps, len(own.ranks)))
        late = [part.came[:, -1].max(axis=1) - own.total[part.rows].max(axis=1) for part in calls]
        if not calls or np.nanmedian(np.concatenate(late)) > WAITS_FIRST * own.step_ns:
            return None
        return cls(own, calls, phases.pieces)

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


def _table(trace: Trace, own: OwnTime) -> pl.DataFrame | None:
    """Return the arrivals of all ranks at calls in flight, in order of step and readiness."""
    training = trace.processes.select("process", "training_thread")
    calls = (
        trace.arrivals.filter(
            pl.col("step").is_in(own.steps.tolist()),
            pl.col("op").cast(pl.String).is_in(FULL_COLLECTIVES),
            pl.col("arrived") == pl.col("expected"),
            pl.col("expected") == len(own.ranks),
            pl.col("last_arrival_ns").is_not_null(),
        )
        .join(training, on="process")
        .with_columns(
            whole=pl.col("end_ns").is_not_null().all().over("communicator", "seq"),
            blocks=(pl.col("thread") == pl.col("training_thread")).any().over("step"),
        )
        .filter("whole")
    )
    blocked = calls.select("step", "blocks").unique()["blocks"].mean()
    if not isinstance(blocked, float) or blocked > BLOCKING:
        return None
    return calls.filter(~pl.col("blocks")).sort(
        "step", "last_arrival_ns", pl.col("communicator").cast(pl.String), "seq", "rank"
    )


def _by_count(table: pl.DataFrame, numbers: Ints, ranks: int) -> Iterator[_Calls]:
    """Take the calls apart by how many a step has; steps without one before are left out."""
    steps = table["step"].to_numpy()[::ranks]
    start, end = (table[name].to_numpy().reshape(-1, ranks) for name in ("start_ns", "end_ns"))
    found, first, count = np.unique(steps, return_index=True, return_counts=True)
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
