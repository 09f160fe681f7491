"""Replays each step's collectives with earlier arrivals, and bounds what hiding transfer would save.

While a reduction is under way beside backprop, a rank that comes late to the next one delays nobody as
long as it comes before that is through (Li et al. 2019: pipelining mitigates stragglers, partially). A
call goes when its last rank has come and the one before is through. What of a step's end moves, beyond
what the last arrival does, is the pipeline's doing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.compute_time import AFTER_MEETING
from tracelens.accounting.pieces import spent_before
from tracelens.accounting.thread_activity import training_threads
from tracelens.model.calls import NEVER, distinct, taken
from tracelens.model.columns import FOREVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.accounting.phases import Phases
    from tracelens.accounting.pieces import Segments
    from tracelens.arrays import Floats, Indices, Ints
    from tracelens.model.calls import CallGrid
    from tracelens.model.trace import Trace
    from tracelens.replay.counterfactual import Episode


def hideable_transfer(trace: Trace, phases: Phases) -> int:
    """Return by how many nanoseconds hiding transfer would shorten the job, at best.

    In a step no rank can hide more than its backprop has room for, nor what must follow backprop: the
    last collective, or the pulls of new weights. A step is shorter only by what the rank gains that
    gains least.
    """
    room = np.maximum(phases.of("backprop") - phases.hidden_ns, 0)
    early = phases.of("transfer") * (1 - _pulled(trace)) - _last_transfers(trace, phases)
    gain = np.minimum(np.maximum(early, 0), room)
    least = np.full(len(phases.steps), np.inf)
    np.minimum.at(least, phases.step_places[phases.there], gain[phases.there])
    return int(least[np.isfinite(least)].sum())


def _last_transfers(trace: Trace, phases: Phases) -> Ints:
    """Return the transfer of the last collective of each step window; 0 where there is none."""
    transfer = np.zeros(len(phases.there), np.int64)
    latest = np.full(len(transfer) + 1, NEVER)  # the last one is of no window
    for calls, window in _by_window(trace, phases):
        np.maximum.at(latest, window.T.ravel(), calls.start_ns.T.ravel())
    for calls, window in _by_window(trace, phases):
        cells = np.nonzero((calls.start_ns == latest[window]) & (window >= 0))
        transfer[window[cells]] = (calls.end_ns - calls.start_ns - calls.wait_ns())[cells]
    return transfer


def _by_window(trace: Trace, phases: Phases) -> Iterator[tuple[CallGrid, Indices]]:
    """Yield calls, some at a time, and the step window of each cell; -1 where it is not over."""
    for grid in trace.calls:
        for _, some in grid.taken(np.flatnonzero(grid.last_ns != NEVER)).blocks():
            window = phases.windows_of(some.processes, distinct(some.step))
            yield some, np.where(some.there & (some.end_ns != FOREVER), window, -1)


def _pulled(trace: Trace) -> float:
    """Return the share of pulls in what workers exchange with parameter servers; 0 without any."""
    op = pl.col("op").cast(pl.String)
    moved = trace.requests.filter((pl.col("kind") == "ps") & op.is_in(["push", "pull"]))
    sums = moved.select(
        pulled=pl.col("bytes").filter(op == "pull").sum(), all=pl.col("bytes").sum()
    )
    pulled, everything = sums.row(0)
    return float(pulled / everything) if everything else 0.0


BLOCKING: Final = (
    0.1  # of the steps with calls that stop the training thread: then it is no pipeline
)
_AT_ONCE: Final = 256  # steps
WAITS_FIRST: Final = 0.05  # of a step that the thread waits before its last call: nor then,
GOES_ON: Final = 0.25  # nor where it works for so much of a step after it


@dataclass(frozen=True, eq=False)
class _CallArrivals:
    """Calls of steps that have equally many: where they are among all, [step, call], and their wire.

    `rows` are rows of `ComputeTime`; `start_ns` is of all calls, [call, column], and `column` where each
    rank's is. `left_ns` is when each rank left the step before, [step, column].
    """

    rows: Ints
    places: Indices
    wire: Floats
    start_ns: Ints
    left_ns: Ints
    column: Indices

    def came(self, call: int) -> Floats:
        """Return how long after the step before ranks came to a call of each step, [step, column]."""
        since = taken(self.start_ns, self.places[:, call])
        since -= self.left_ns
        return since.astype(np.float64)

    @property
    def last(self) -> Floats:
        """When the last rank came to the last call of each step."""
        return np.asarray(self.came(-1).max(axis=1))

    def gain(self, columns: Indices, sooner: Floats) -> Floats:
        """Return by how much more a step is shorter if some ranks come `sooner`, than its last arrival.

        `sooner` is [step, call, column], of `columns`.
        """
        before, after = np.empty((2, *self.wire.shape))
        for call in range(self.wire.shape[1]):
            came = self.came(call)
            before[:, call] = came.max(axis=1)
            came[:, columns] -= sooner[:, call]
            after[:, call] = came.max(axis=1)
        of_last = before[:, -1] - after[:, -1]
        return np.asarray(
            _end_of_arrivals(before, self.wire) - _end_of_arrivals(after, self.wire) - of_last
        )


@dataclass(frozen=True, eq=False)
class Pipeline:
    """The reductions that run beside the training thread, and the pieces of its time."""

    own: ComputeTime
    calls: tuple[_CallArrivals, ...]
    pieces: Segments

    @classmethod
    def of(cls, trace: Trace, phases: Phases, own: ComputeTime) -> Pipeline | None:
        """Build it of the calls in flight of all ranks; None where they are no pipeline as above.

        That is where the last call of a step does not come about when a rank has done its own work: the
        training thread waits before it, or goes on for long, beside calls that end in the next step.
        """
        calls = tuple(_in_flight_by_count(trace, own))
        if not calls:
            return None
        work = np.nan_to_num(own.total).max(axis=1)
        late = [part.last - work[part.rows] for part in calls]
        usual = float(np.median(np.concatenate(late)))
        fits = -GOES_ON * own.step_ns <= usual <= WAITS_FIRST * own.step_ns
        return cls(own, calls, phases.pieces) if fits else None

    def further(self, late: Episode, effect: Floats) -> Floats:
        """Return by how much more than without pipeline each step is shorter without `effect`.

        Args:
            late: Who is late, and in what.
            effect: Nanoseconds that a fix takes away, [step, rank].

        Returns:
            Nanoseconds, [step]; negative where reductions under way absorb the lateness.
        """
        more = np.zeros(len(self.own.steps))
        if late.phase in AFTER_MEETING:  # over before the next step's first call
            return more
        delayed = np.flatnonzero(late.effect.any(axis=0))
        for part in self.calls:
            whole = effect[np.ix_(part.rows, delayed)]
            if late.pattern in ("sparse", "migrating"):
                sooner = _beyond_peers(part, delayed, whole)
            else:
                sooner = whole[:, None, :] * self._done(part, delayed, (late.phase, *late.also))
            more[part.rows] = part.gain(part.column[delayed], sooner)
        return more

    def _done(self, part: _CallArrivals, delayed: Indices, names: tuple[str, ...]) -> Floats:
        """Return what share of some phases each of some ranks had behind it at each call."""
        own = self.own
        values = np.nan_to_num(
            own.own[[name in names for name in own.phases]][..., delayed].sum(axis=0)
        )
        theirs = {own.ranks[rank] for rank in delayed}
        found = [self.pieces.of(name, own.steps[part.rows], theirs) for name in names]
        pieces = pl.concat(found).sort("start_ns")
        done = np.zeros((*part.places.shape, len(delayed)))
        for at, rank in enumerate(delayed.tolist()):
            inside = pieces.filter(pl.col("rank") == own.ranks[rank])
            column = part.column[rank]
            arrived, left = part.start_ns[part.places, column], part.left_ns[:, column]
            since = spent_before(inside, arrived) - spent_before(inside, left)[:, None]
            done[:, :, at] = since / np.maximum(values[part.rows, at], 1.0)[:, None]
        return np.clip(done, 0.0, 1.0)


def _end_of_arrivals(last: Floats, wire: Floats) -> Floats:
    """Return when the last call of each step is through, by the last arrivals, [step, call]."""
    free = np.zeros(len(last))
    for call in range(wire.shape[1]):
        free = np.asarray(np.maximum(last[:, call], free) + wire[:, call])
    return free


def _beyond_peers(part: _CallArrivals, delayed: Indices, effect: Floats) -> Floats:
    """Return what of an effect in single steps had happened by each call: its lead over the median."""
    found = np.empty((*part.places.shape, len(delayed)))
    for call in range(part.places.shape[1]):
        came = part.came(call)
        lead = came[:, part.column[delayed]] - np.median(came, axis=1, keepdims=True)
        found[:, call] = np.clip(lead, 0.0, effect)
    return found


def _in_flight_by_count(trace: Trace, own: ComputeTime) -> Iterator[_CallArrivals]:
    """Split calls in flight of all ranks by how many a step has; each needs a step before it."""
    training, parts = training_threads(trace), []
    for grid in trace.calls:
        if len(grid.processes) != len(own.ranks):
            continue
        chosen = np.flatnonzero(
            grid.is_full
            & (grid.arrived == len(own.ranks))
            & (grid.expected == len(own.ranks))
            & (grid.last_ns != NEVER)
            & np.isin(distinct(grid.step), own.steps).all(axis=1)
        )
        stops = (grid.thread == training[grid.processes]).any(axis=1)
        open_ = (grid.end_ns == FOREVER).any(axis=1)
        parts.append((grid.taken(chosen), grid.first("step")[chosen], stops[chosen], open_[chosen]))
    if not parts:
        return
    number, stops, open_ = (np.concatenate([part[at] for part in parts]) for at in (1, 2, 3))
    blocking = np.isin(number, number[stops])
    if len(np.unique(number[blocking])) > BLOCKING * len(np.unique(number)):
        return
    last, start, end = (
        _joined([getattr(grid, name) for grid, *_ in parts])
        for name in ("last_ns", "start_ns", "end_ns")
    )
    order = np.lexsort((last, number))
    order = order[~(blocking | open_)[order]]
    by_rank = np.searchsorted(trace.workers["process"].sort(), trace.workers["process"])
    yield from _taken_apart(own.steps, number[order], order, (start, end), by_rank)


def _joined(parts: list[Ints]) -> Ints:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _taken_apart(
    numbers: Ints, step: Ints, order: Indices, times: tuple[Ints, Ints], column: Indices
) -> Iterator[_CallArrivals]:
    start, end = times
    found, first, count = np.unique(step, return_index=True, return_counts=True)
    if not len(found):
        return
    left = taken(end, order[first])
    for call in range(1, count.max()):
        some = np.flatnonzero(count > call)
        left[some] = np.maximum(left[some], taken(end, order[first[some] + call]))
    follows = np.flatnonzero(np.diff(found, prepend=found[0] - 2) == 1)
    for many in np.unique(count[follows]):
        chosen = follows[count[follows] == many]
        places = order[first[chosen][:, None] + np.arange(many)]
        yield _CallArrivals(
            rows=np.searchsorted(numbers, found[chosen]),
            places=places,
            wire=_wire(start, end, places),
            start_ns=start,
            left_ns=left[chosen - 1],
            column=column,
        )


def _wire(start: Ints, end: Ints, places: Indices) -> Floats:
    """Return how long each call held the wire: the shortest of its ranks' times since it was free."""
    wire, free = np.empty(places.shape), end[:0]
    for first in range(0, len(places), _AT_ONCE):
        for call, rows in enumerate(places[first : first + _AT_ONCE].T):
            since, over = taken(start, rows), taken(end, rows)
            if call:
                since = np.where(free < over, np.maximum(since, free), since)
            wire[first : first + _AT_ONCE, call] = (over - since).min(axis=1)
            free = over
    return wire
