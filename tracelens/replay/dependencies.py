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
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES
from tracelens.accounting.thread_activity import training_threads
from tracelens.model.calls import NEVER, taken
from tracelens.stats.constants import MOST_UNMATCHED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.accounting.phases import Phases
    from tracelens.accounting.pieces import WorkerPieces
    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.model.trace import Trace

    Edges = tuple[Ints, Ints, Ints]  # sources, targets and lags

__all__ = ["Dependencies", "Graph"]

_IS_BLOCKED: Final = np.isin(CATEGORIES, ("wait", "ps_queue", "transfer"))


@dataclass(frozen=True)
class Graph:
    """Moments and what each follows: it comes no earlier than any `source` of it and that edge's lag.

    `order` puts the edges into layers, in which moments can be played one layer after the other;
    `layers` are their begins in it, one more than layers.
    """

    recorded: Floats
    source: Indices
    target: Indices
    lag: Floats
    order: Indices
    layers: Ints

    @classmethod
    def of(cls, recorded: Floats, source: Indices, target: Indices, lag: Floats) -> Self:
        """Make it; there must be no circle."""
        layer = _layers(len(recorded), source, target)[target]
        order = np.lexsort((target, layer))
        layers = np.searchsorted(layer[order], np.arange(1, layer.max(initial=0) + 2))
        return cls(recorded, source, target, lag, order, layers)

    def play(self, lag: Floats) -> Floats:
        """Return when all moments come with other lags; those that follow nothing come as they did."""
        time = self.recorded.copy()
        source, target, lag = self.source[self.order], self.target[self.order], lag[self.order]
        for begin, end in zip(self.layers[:-1].tolist(), self.layers[1:].tolist(), strict=True):
            heads = np.flatnonzero(np.diff(target[begin:end], prepend=-1))
            moved = time[source[begin:end]] + lag[begin:end]
            time[target[begin:end][heads]] = np.maximum.reduceat(moved, heads)
        return time


def _layers(moments: int, source: Indices, target: Indices) -> Ints:
    """Return for each moment how many it follows, one after the other, at most."""
    order = np.argsort(source, kind="stable")
    follows, begins = target[order], np.searchsorted(source[order], np.arange(moments + 1))
    left = np.bincount(target, minlength=moments)
    layer = np.zeros(moments, np.int64)
    ready, number = np.flatnonzero(left == 0), 0
    while len(ready):
        layer[ready] = number
        reached = follows[_stretches(begins[ready], begins[ready + 1])]
        np.subtract.at(left, reached, 1)
        ready = np.unique(reached[left[reached] == 0])
        number += 1
    return layer


def _stretches(begin: Ints, end: Ints) -> Indices:
    """Return the numbers of several stretches, one after the other."""
    count = end - begin
    before = np.cumsum(count) - count
    return np.asarray(np.arange(count.sum()) - np.repeat(before - begin, count))


@dataclass(frozen=True)
class _Sides:
    """Messages on one side, or ranks in collectives: of which worker, from when until when.

    `stops` says whether its training thread was in it.
    """

    worker: Ints
    begin: Ints
    end: Ints
    stops: Flags

    def taken(self, rows: Indices | Flags) -> _Sides:
        """Return some of them."""
        return _Sides(self.worker[rows], self.begin[rows], self.end[rows], self.stops[rows])

    def within(self, first: Ints, last: Ints) -> Flags:
        """Return which lie in the steps of their worker."""
        return (self.begin >= first[self.worker]) & (self.end <= last[self.worker])


@dataclass(frozen=True)
class _Thread:
    """A training thread: its moments, and what lies between two of them.

    `stopped` says between which moments it was in a message or collective, `arrives` at which of them
    something in flight was over for which it was blocked. `steps` have `ends`.
    """

    pieces: WorkerPieces
    moments: Ints
    stopped: Flags
    arrives: Flags
    steps: Ints
    ends: Ints

    @classmethod
    def of(cls, pieces: WorkerPieces, steps: pl.DataFrame, sides: Sequence[_Sides]) -> Self:
        """Find the moments among steps and what it exchanged."""
        begin, end, stops = (
            np.concatenate([getattr(side, name) for side in sides])
            for name in ("begin", "end", "stops")
        )
        arrived = end[~stops & (_waits_since(pieces, end) < end)]
        ends = steps["end_ns"].to_numpy()
        first = steps["start_ns"].to_numpy()[:1]
        moments = np.unique(np.concatenate([first, ends, begin, end[stops], arrived]))
        inside = np.zeros(len(moments), np.int64)
        np.add.at(inside, np.searchsorted(moments, begin[stops]), 1)
        np.subtract.at(inside, np.searchsorted(moments, end[stops]), 1)
        return cls(
            pieces=pieces,
            moments=moments,
            stopped=np.cumsum(inside)[:-1] > 0,
            arrives=np.isin(moments, arrived),
            steps=steps["step"].to_numpy().astype(np.int64),
            ends=ends,
        )

    def lags(self, caused: Flags) -> Ints:
        """Return how long after one moment the next one comes, if it follows nothing else.

        What it was blocked before one that is `caused`, [moment], it is as long as that takes.
        """
        passed = self.spent(~_IS_BLOCKED)
        lags = np.where((self.arrives & caused)[1:], passed, np.diff(self.moments))
        return np.where(self.stopped, 0, lags).astype(np.int64)

    def spent(self, counts: Flags) -> Floats:
        """Return how much of some categories lies between the moments."""
        return np.diff(self.pieces.spent_before(counts, self.moments))


@dataclass(frozen=True)
class Dependencies:
    """A run as a graph of moments, in which ranks may work for less than they did.

    The first edges are those of `threads`, which have consecutive moments from `firsts` on. `ends` are
    the ends of the steps that are asked for, [step, rank], -1 where a rank lacks one, and `rows` the
    step of each of the first edges, -1 for others.
    """

    graph: Graph
    threads: tuple[_Thread, ...]
    ends: Ints
    rows: tuple[Ints, ...]
    _spent: dict[tuple[str, ...], list[Floats]] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace, phases: Phases, steps: Ints) -> Self | None:
        """Build it of the messages and collectives of all workers.

        None where no message was matched, or where workers are blocked for long by what was not.
        """
        processes = trace.workers["process"].to_list()
        windows = trace.steps.sort("start_ns").partition_by("process", as_dict=True)
        if not trace.exchanged.height or any((process,) not in windows for process in processes):
            return None
        mine = [windows[process,] for process in processes]
        first = np.array([part["start_ns"][0] for part in mine])
        last = np.array([part["end_ns"][-1] for part in mine])
        sent, received = _messages(trace, first, last)
        calls, met = _calls(trace, first, last)
        if not len(sent.worker):
            return None
        threads = []
        for worker, process in enumerate(processes):
            sides = [side.taken(side.worker == worker) for side in (sent, received, calls)]
            pieces = phases.pieces.of_worker(phases.pieces.processes.index(process))
            threads.append(_Thread.of(pieces, mine[worker], sides))
        numbers = _Numbers(threads)
        since = _all_waits_since(received, threads)
        edges = _of_messages(sent, received, since, numbers)
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
        rows = tuple(_rows(thread, steps) for thread in threads)
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


def _waits_since(pieces: WorkerPieces, moments: Ints) -> Ints:
    """Return since when a thread was blocked until some moments; the moment itself where it was not."""
    inside = np.concatenate([[False], _IS_BLOCKED[pieces.category], [False]])
    edges = pieces.bounds[np.flatnonzero(inside[1:] != inside[:-1])]
    number = np.searchsorted(edges, moments)  # odd after the begin of a stretch, up to its end
    return np.where(number % 2 == 1, np.append(edges, 0)[number - 1], moments)


def _all_waits_since(received: _Sides, threads: Sequence[_Thread]) -> Ints:
    """Return since when threads waited for messages; receives in flight were begun before."""
    since = received.begin.copy()
    for worker, thread in enumerate(threads):
        rows = np.flatnonzero((received.worker == worker) & ~received.stops)
        since[rows] = _waits_since(thread.pieces, received.end[rows])
    return since


def _shared_out(effect: Floats, rows: Ints, spent: Floats) -> Floats:
    """Return what part of a worker's effect in each step lies between two moments: as the work does."""
    whole = np.bincount(rows[rows >= 0], spent[rows >= 0], minlength=len(effect))
    rate = np.divide(effect, whole, out=np.zeros_like(effect), where=whole > 0)
    return np.where(rows >= 0, rate[rows] * spent, 0.0)


def _rows(thread: _Thread, steps: Ints) -> Ints:
    """Return of which step what lies between two moments is, as a row of `steps`; -1 of none."""
    window = np.searchsorted(thread.ends, thread.moments[:-1], side="right")
    row = np.searchsorted(steps, thread.steps)
    known = np.append(steps, -1)[row] == thread.steps
    return np.where(known, row, -1)[np.minimum(window, len(row) - 1)]


class _Numbers:
    """Numbers the moments of all threads, one thread after the other."""

    def __init__(self, threads: Sequence[_Thread]) -> None:
        self._threads = threads
        self._first = np.cumsum([0, *(len(thread.moments) for thread in threads)])
        self.count = int(self._first[-1])

    def of(self, worker: Ints, moment: Ints) -> Ints:
        """Return the number of a moment of each of some workers; -1 where it is none of its thread."""
        found = np.full(len(worker), -1, np.int64)
        for number, thread in enumerate(self._threads):
            rows = np.flatnonzero(worker == number)
            at = np.minimum(np.searchsorted(thread.moments, moment[rows]), len(thread.moments) - 1)
            there = thread.moments[at] == moment[rows]
            found[rows] = np.where(there, self._first[number] + at, -1)
        return found

    def blocked_ns(self) -> tuple[float, float]:
        """Return how long threads were blocked by nothing that is known here, and how long in all."""
        unknown = whole = 0.0
        for thread in self._threads:
            blocked = thread.spent(_IS_BLOCKED)
            unknown += float(blocked[~thread.stopped & ~thread.arrives[1:]].sum())
            whole += float(blocked.sum())
        return unknown, whole

    def _flags(self, numbers: Ints) -> list[Flags]:
        """Return which moments of each thread are among some."""
        flags = np.zeros(self.count, np.bool_)
        flags[numbers[numbers < self.count]] = True
        return np.split(flags, self._first[1:-1])

    def in_order(self, caused: Ints) -> Edges:
        """Return that each moment of a thread follows the one before it; `caused` follow others, too."""
        source = [
            np.arange(first, first + len(thread.moments) - 1)
            for first, thread in zip(self._first.tolist(), self._threads, strict=False)
        ]
        lags = [
            thread.lags(flags)
            for thread, flags in zip(self._threads, self._flags(caused), strict=True)
        ]
        return np.concatenate(source), np.concatenate(source) + 1, np.concatenate(lags)

    def ends(self, steps: Ints) -> Ints:
        """Return the ends of some steps, [step, worker], -1 where a worker lacks one."""
        found = np.full((len(steps), len(self._threads)), -1, np.int64)
        for number, thread in enumerate(self._threads):
            row = np.searchsorted(steps, thread.steps)
            known = np.append(steps, -1)[row] == thread.steps
            at = self._first[number] + np.searchsorted(thread.moments, thread.ends)
            found[row[known], number] = at[known]
        return found


def _messages(trace: Trace, first: Ints, last: Ints) -> tuple[_Sides, _Sides]:
    """Return both sides of all messages that lie in the steps of both workers."""
    place = trace.workers.select("process", worker=pl.int_range(pl.len(), dtype=pl.Int64))
    messages = trace.exchanged.filter(~pl.col("hop"), ~pl.col("hop_there"))
    for suffix in ("", "_there"):
        named = place.rename({"process": f"process{suffix}", "worker": f"worker{suffix}"})
        messages = messages.join(named, on=f"process{suffix}", how="inner")
    names = ("worker", "start_ns", "end_ns", "stops")
    sides = [
        _Sides(*(messages[f"{name}{suffix}"].to_numpy() for name in names))
        for suffix in ("", "_there")
    ]
    kept = sides[0].within(first, last) & sides[1].within(first, last)
    return sides[0].taken(kept), sides[1].taken(kept)


def _calls(trace: Trace, first: Ints, last: Ints) -> tuple[_Sides, Ints]:
    """Return ranks in collectives that all came to and left in their steps, and the call of each."""
    training, processes = training_threads(trace), trace.workers["process"].to_list()
    found: list[_Sides] = []
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
        found.append(_Sides(everyone, start.ravel(), end.ravel(), stops.ravel()))
        numbers.append(np.repeat(np.arange(count, count + len(rows)), len(worker)))
        count += len(rows)
    none = np.zeros(0, np.int64)
    parts = ("worker", "begin", "end", "stops")
    joined = (np.concatenate([none, *(getattr(one, part) for one in found)]) for part in parts)
    worker, begin, end, stops = joined
    return _Sides(worker, begin, end, stops.astype(np.bool_)), np.concatenate([none, *numbers])


def _of_messages(sent: _Sides, received: _Sides, since: Ints, numbers: _Numbers) -> list[Edges]:
    """Return what ends of sends and receives follow; `since` is when receivers began to wait.

    A message that is there before came sooner than the receive tells: as soon as those between the same
    workers for which one waited.
    """
    send, sent_by = numbers.of(sent.worker, sent.begin), numbers.of(sent.worker, sent.end)
    receive, got = (numbers.of(received.worker, at) for at in (received.begin, received.end))
    way = received.end - sent.begin
    usual = _usual(sent.worker, received.worker, way, sent.begin >= since)
    awaited = (way > 0) & (sent.begin + usual >= since)
    takes = np.where(awaited, 0, received.end - received.begin)
    # What is sent and received in one call lasts as long as its receive.
    once = _in_one_call(sent, received)
    blocked = (received.begin > sent.begin) & (sent.end > received.begin) & ~once
    lasts = np.where(blocked | once, 0, sent.end - sent.begin)
    edges = [
        (send, got, np.where(awaited, way, np.minimum(usual, way)), way > 0),
        (receive, got, takes, received.stops),
        (receive, sent_by, sent.end - received.begin, blocked),
        (send, sent_by, lasts, sent.stops),
    ]
    return [_known(source, target, lag, there) for source, target, lag, there in edges]


def _in_one_call(sent: _Sides, received: _Sides) -> Flags:
    """Return which sends overlap a receive on their thread."""
    found = np.zeros(len(sent.worker), np.bool_)
    for worker in np.unique(sent.worker):
        mine, others = sent.worker == worker, (received.worker == worker) & received.stops
        begins, ends = np.sort(received.begin[others]), np.sort(received.end[others])
        begun = np.searchsorted(begins, sent.end[mine])
        found[mine] = begun > np.searchsorted(ends, sent.begin[mine], side="right")
    return found & sent.stops


def _usual(sender: Ints, receiver: Ints, way: Ints, awaited: Flags) -> Ints:
    """Return what a message between the same two takes for which one waits; else one of any two."""
    table = pl.DataFrame({"of": sender, "to": receiver, "way": way, "awaited": awaited})
    some = pl.col("way").filter("awaited").median()
    found = table.select(some.over("of", "to").fill_null(some).fill_null(0))
    return found.to_series().cast(pl.Int64).to_numpy()


def _of_calls(calls: _Sides, met: Ints, last_ns: Ints, numbers: _Numbers) -> list[Edges]:
    """Return that collectives go when the last rank has come, and what ends of them follow."""
    begin, end = numbers.of(calls.worker, calls.begin), numbers.of(calls.worker, calls.end)
    goes = numbers.count + met
    waits = calls.end > last_ns[met]
    edges = [
        (begin, goes, np.zeros_like(met), np.ones(len(met), np.bool_)),
        (goes, end, calls.end - last_ns[met], waits),
        (begin, end, calls.end - calls.begin, calls.stops & ~waits),
    ]
    return [_known(source, target, lag, there) for source, target, lag, there in edges]


def _known(source: Ints, target: Ints, lag: Ints, there: Flags) -> Edges:
    """Return the edges between known moments, of which one is not the other."""
    rows = there & (source >= 0) & (target >= 0) & (source != target)
    return source[rows], target[rows], lag[rows]
