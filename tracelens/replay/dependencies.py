"""Replays a run by what its ranks do in which order, and what they wait for from each other.

A moment is a begin or an end of a message or collective as a rank's training thread saw it, or the end
of a step. It comes when all that it follows has come, each after a lag: the moment before it on its
thread, after the work between both; the end of a receive, after its message was begun to be sent, and
was on its way; the end of a send that was not buffered, after its receive was begun; the end of a
collective, after the last rank came. Lags are as recorded, so that the unchanged replay is the run
itself. Whoever works for less comes earlier, and so does whoever waits for it, as far as nothing else
holds it up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np

from tracelens.accounting.categories import CATEGORIES
from tracelens.accounting.thread_activity import training_threads
from tracelens.model.calls import NEVER, taken
from tracelens.replay.graph import Graph
from tracelens.replay.messages import known_edges, message_edges, messages_of
from tracelens.replay.threads import Numbers, Sides, Thread, rows_of, threads_of
from tracelens.stats.constants import MOST_UNMATCHED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Floats, Ints
    from tracelens.model.trace import Trace
    from tracelens.replay.threads import Edges

__all__ = ["Dependencies"]


@dataclass(frozen=True, eq=False)
class Dependencies:
    """A run as a graph of moments, in which ranks may work for less than they did.

    The first edges are those of `threads`, which have consecutive moments from `firsts` on. `ends` are
    the ends of the steps that are asked for, [step, rank], -1 where a rank lacks one, and `rows` the
    step of each of the first edges, -1 for others.
    """

    graph: Graph
    threads: tuple[Thread, ...]
    ends: Ints
    rows: tuple[Ints, ...]
    _spent: dict[tuple[str, ...], list[Floats]] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace, phases: Phases, steps: Ints) -> Self | None:
        """Build it of the messages and collectives of all workers.

        None where no message was matched, or where workers are blocked for long by what was not.
        """
        if not trace.exchanged.height:
            return None
        processes = trace.workers["process"].to_list()
        windows = trace.steps.sort("start_ns").partition_by("process", as_dict=True)
        if any((process,) not in windows for process in processes):
            return None
        mine = [windows[process,] for process in processes]
        first = np.array([part["start_ns"][0] for part in mine])
        last = np.array([part["end_ns"][-1] for part in mine])
        pieces = [
            phases.pieces.of_worker(phases.pieces.processes.index(process)) for process in processes
        ]
        sent, received = messages_of(trace, pieces, first, last)
        calls, met = _calls(trace, first, last)
        if not len(sent.worker):
            return None
        threads = threads_of(pieces, mine, (sent, received, calls))
        numbers = Numbers(threads)
        edges = message_edges(sent, received, threads, numbers)
        last_ns = np.full(int(met.max(initial=-1)) + 1, NEVER)
        np.maximum.at(last_ns, met, calls.begin)
        edges += _of_calls(calls, met, last_ns, numbers)
        recorded = np.concatenate([*(thread.moments for thread in threads), last_ns])
        held = _held_by(recorded, edges)
        unknown, blocked = numbers.blocked_ns()
        if unknown > MOST_UNMATCHED * blocked:
            return None
        edges = [numbers.in_order(held), *edges]
        source, target, lag = (np.concatenate([edge[part] for edge in edges]) for part in range(3))
        graph = Graph.of(recorded.astype(np.float64), source, target, lag.astype(np.float64))
        rows = tuple(rows_of(thread, steps) for thread in threads)
        return cls(graph, tuple(threads), numbers.ends(steps), rows)

    def lost(self, *changes: tuple[tuple[str, ...], Floats]) -> Floats:
        """Return by how much shorter each step is with other `lags`, [step]."""
        before, after = (
            np.where(self.ends >= 0, at[self.ends], -np.inf).max(axis=1)
            for at in (self.graph.recorded, self.graph.play(self.lags(*changes)))
        )
        return np.diff(before - after, prepend=0.0)

    def lags(self, *changes: tuple[tuple[str, ...], Floats]) -> Floats:
        """Return the lags of all edges if ranks work for less.

        `changes` are names of phases, and what is taken off them (below 0: added), ns, [step, rank].
        """
        lag = self.graph.lag.copy()
        for names, effect in changes:
            parts = zip(self.rows, self._spent_in(names), strict=True)
            less = [_shared_out(by, *part) for by, part in zip(effect.T, parts, strict=True)]
            lag[: sum(map(len, less))] -= np.concatenate(less)
        return lag

    def _spent_in(self, names: tuple[str, ...]) -> list[Floats]:
        """Return for each thread how much of some phases lies between its moments."""
        if names not in self._spent:
            counts = np.isin(CATEGORIES, names)
            self._spent[names] = [
                np.where(thread.stopped, 0.0, thread.spent(counts)) for thread in self.threads
            ]
        return self._spent[names]


def _held_by(recorded: Ints, edges: Sequence[Edges]) -> Ints:
    """Return the moments that did not come earlier for what they follow on other threads."""
    source, target, lag = (np.concatenate([edge[part] for edge in edges]) for part in range(3))
    return np.asarray(target[recorded[source] + lag >= recorded[target]])


def _shared_out(effect: Floats, rows: Ints, spent: Floats) -> Floats:
    """Return what part of a worker's effect in each step lies between two moments: as the work does."""
    whole = np.bincount(rows[rows >= 0], spent[rows >= 0], minlength=len(effect))
    rate = np.divide(effect, whole, out=np.zeros_like(effect), where=whole > 0)
    return np.where(rows >= 0, rate[rows] * spent, 0.0)


def _calls(trace: Trace, first: Ints, last: Ints) -> tuple[Sides, Ints]:
    """Return ranks in collectives that all came to and left in their steps, and the call of each."""
    training, processes = training_threads(trace), trace.workers["process"].to_list()
    found: list[Sides] = []
    numbers: list[Ints] = []
    count = 0
    for grid in trace.calls:
        if not set(grid.processes.tolist()) <= set(processes):
            continue
        worker = np.array([processes.index(process) for process in grid.processes.tolist()])
        rows = np.flatnonzero(grid.is_full & grid.there.all(axis=1) & (grid.last_ns != NEVER))
        start, end = taken(grid.start_ns, rows), taken(grid.end_ns, rows)
        within = ((start >= first[worker]) & (end <= last[worker])).all(axis=1)
        rows, start, end = rows[within], start[within], end[within]
        stops = (grid.thread == training[grid.processes])[rows]
        everyone = np.broadcast_to(worker, start.shape).ravel()
        found.append(Sides(everyone, start.ravel(), end.ravel(), stops.ravel()))
        numbers.append(np.repeat(np.arange(count, count + len(rows)), len(worker)))
        count += len(rows)
    none = np.zeros(0, np.int64)
    parts = ("worker", "begin", "end", "stops")
    joined = (np.concatenate([none, *(getattr(one, part) for one in found)]) for part in parts)
    worker, begin, end, stops = joined
    return Sides(worker, begin, end, stops.astype(np.bool_)), np.concatenate([none, *numbers])


def _of_calls(calls: Sides, met: Ints, last_ns: Ints, numbers: Numbers) -> list[Edges]:
    """Return that collectives go when the last rank has come, and what ends of them follow."""
    begin, end = numbers.of(calls.worker, calls.begin), numbers.of(calls.worker, calls.end)
    goes = numbers.count + met
    waits = calls.end > last_ns[met]
    edges = [
        (begin, goes, np.zeros_like(met), np.ones(len(met), np.bool_)),
        (goes, end, calls.end - last_ns[met], waits),
        (begin, end, calls.end - calls.begin, calls.stops & ~waits),
    ]
    return [known_edges(source, target, lag, there) for source, target, lag, there in edges]
