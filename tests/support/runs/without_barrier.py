"""The truth of `async=on`: a scenario's run at servers that apply each gradient as it comes.

Workers and servers are those of `simulator.parameter_server` and `simulator.interleaved_servers`, with
the same random numbers, but no worker waits for another one. A shard adds the last piece of a worker's
gradient up and applies the gradient in one go, which takes `apply_ms`; then the worker goes on.
"""

from __future__ import annotations

from collections import defaultdict, deque
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from tracelens.simulator import durations
from tracelens.simulator.allreduce import draw_compute_times
from tracelens.simulator.scenario import MILLISECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.simulator.scenario import Scenario

    Then = Callable[[], None]


class _Clock:
    """Calls things in order of time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._numbers = count()
        self._agenda: list[tuple[float, int, Then]] = []

    def call_later(self, delay: float, then: Then) -> None:
        heappush(self._agenda, (self.now + delay, next(self._numbers), then))

    def run(self) -> None:
        while self._agenda:
            self.now, _, then = heappop(self._agenda)
            then()


class _InTurn:
    """A link or processor that serves one after the other."""

    def __init__(self, clock: _Clock) -> None:
        self._clock, self._free = clock, 0.0

    def serve(self, work: float, then: Then) -> None:
        self._free = max(self._free, self._clock.now) + work
        self._clock.call_later(self._free - self._clock.now, then)


class _Shared:
    """A link that all on it share evenly; those of one stream take turns."""

    def __init__(self, clock: _Clock, incast: float) -> None:
        self._clock, self._incast = clock, incast
        self._left: dict[int, list[float]] = {}
        self._then: dict[int, tuple[Then, int | None]] = {}
        self._waiting: dict[int, deque[tuple[float, Then]]] = defaultdict(deque)
        self._busy: set[int] = set()
        self._now, self._numbers, self._version = 0.0, count(), 0

    def serve(self, work: float, callback: Then, stream: int | None = None) -> None:
        self._advance()
        if stream is not None and stream in self._busy:
            self._waiting[stream].append((work, callback))
            return
        if stream is not None:
            self._busy.add(stream)
        number = next(self._numbers)
        self._left[number], self._then[number] = [work], (callback, stream)
        self._plan()

    def _slowdown(self) -> float:
        crowd = len(self._left)
        return crowd * (1 + self._incast * (crowd - 1))

    def _advance(self) -> None:
        if self._left:
            done = (self._clock.now - self._now) / self._slowdown()
            for left in self._left.values():
                left[0] -= done
        self._now = self._clock.now

    def _plan(self) -> None:
        self._version += 1
        if self._left:
            least = max(min(left[0] for left in self._left.values()), 0.0)
            version = self._version
            self._clock.call_later(least * self._slowdown(), lambda: self._end(version))

    def _end(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        for number in [number for number, left in self._left.items() if left[0] <= 0.5]:
            del self._left[number]
            then, stream = self._then.pop(number)
            self._clock.call_later(0.0, then)
            if stream is not None:
                self._busy.discard(stream)
                if self._waiting[stream]:
                    self.serve(*self._waiting[stream].popleft(), stream)
        self._plan()


class _Run:
    """A run without a barrier; `ends` says when each worker was through."""

    def __init__(self, scenario: Scenario, *, own_link: bool) -> None:
        self.scenario, self.clock = scenario, _Clock()
        self.own = draw_compute_times(scenario)
        self.service, self.wires = (
            durations.draw_services(scenario),
            durations.draw_ns_per_byte(scenario),
        )
        self.latency = scenario.latency_us * 1_000
        self.pieces = scenario.pieces
        shards = range(scenario.shards)
        self.processor = [_InTurn(self.clock) for _ in shards]
        self.shared_in = [_Shared(self.clock, scenario.incast) for _ in shards]
        self.shared_out = [_Shared(self.clock, scenario.incast) for _ in shards]
        self.going = [
            _InTurn(self.clock) if own_link else self.processor[shard] for shard in shards
        ]
        self.held = [
            sum(p.nbytes for p in self.pieces if p.shard_index == shard) for shard in shards
        ]
        self.on_shard = [sum(p.shard_index == shard for p in self.pieces) for shard in shards]
        self.left = np.tile(self.on_shard, (scenario.ranks, 1))
        self.coming = {
            (rank, shard): _InTurn(self.clock) for rank in range(scenario.ranks) for shard in shards
        }
        self.ends = np.zeros(scenario.ranks)

    def run(self) -> float:
        for rank in range(self.scenario.ranks):
            self.begin(rank, 0)
        self.clock.run()
        return float(self.ends.max())

    def begin(self, rank: int, step: int) -> None:
        if step == self.scenario.steps:
            self.ends[rank] = self.clock.now
            return
        (_BesideCompute if self.scenario.beside_compute else _AfterCompute)(self, rank, step)

    def wire(self, step: int, row: int) -> float:
        piece = self.pieces[row]
        fixed = self.scenario.message_ms * MILLISECOND
        return float(np.rint(fixed + piece.nbytes * self.wires[step, piece.shard_index]))

    def push(self, rank: int, step: int, row: int, applied: Then) -> None:
        """Send a piece; `applied` once it was the last one of the gradient, and that is applied."""
        piece, work = self.pieces[row], self.wire(step, row)
        processor = self.processor[piece.shard_index]
        adds = (
            self.service[step, piece.shard_index]
            * piece.nbytes
            / max(self.held[piece.shard_index], 1)
        )

        def received() -> None:
            processor.serve(adds, lambda: None)
            self.left[rank, piece.shard_index] -= 1
            if not self.left[rank, piece.shard_index]:
                self.left[rank, piece.shard_index] = self.on_shard[piece.shard_index]
                processor.serve(self.scenario.apply_ms * MILLISECOND, applied)

        def arrived() -> None:
            if self.scenario.shared_links:
                self.shared_in[piece.shard_index].serve(work, received)
            else:
                self.coming[rank, piece.shard_index].serve(work, received)

        self.clock.call_later(self.latency, arrived)


class _AfterCompute:
    """A step that computes, then pushes everything at once, and pulls everything once it is applied."""

    def __init__(self, run: _Run, rank: int, step: int) -> None:
        self.run, self.rank, self.step = run, rank, step
        self.left = {piece.shard_index for piece in run.pieces}
        self.missing = len(run.pieces)
        own = run.own
        times = (own.data_ns, own.forward_ns, own.gc_ns, own.backprop_ns)
        computed = sum(float(array[step, rank]) for array in times)
        run.clock.call_later(computed, self.push)

    def push(self) -> None:
        for row, piece in enumerate(self.run.pieces):
            self.run.push(self.rank, self.step, row, partial(self.was_applied, piece.shard_index))

    def was_applied(self, shard: int) -> None:
        self.left.remove(shard)
        if not self.left:
            self.run.clock.call_later(2 * self.run.latency, self.was_asked)

    def was_asked(self) -> None:
        for row, piece in enumerate(self.run.pieces):
            work = self.run.wire(self.step, row)
            self.run.going[piece.shard_index].serve(work, self.was_replied)

    def was_replied(self) -> None:
        self.run.clock.call_later(self.run.latency, self.was_pulled)

    def was_pulled(self) -> None:
        self.missing -= 1
        if not self.missing:
            self.run.begin(self.rank, self.step + 1)


class _BesideCompute:
    """A step that pulls all at its begin, and pushes each gradient once it is made."""

    def __init__(self, run: _Run, rank: int, step: int) -> None:
        self.run, self.rank, self.step = run, rank, step
        variables = sorted({piece.variable_index for piece in run.pieces})
        work = np.array(run.scenario.work or [1.0] * (max(variables) + 1))[variables]
        self.shares = work / work.sum()
        self.rows = [
            [row for row, piece in enumerate(run.pieces) if piece.variable_index == variable]
            for variable in variables
        ]
        self.place = {variable: at for at, variable in enumerate(variables)}
        self.missing = [len(rows) for rows in self.rows]
        self.next, self.computing, self.computed = 0, True, False
        self.left = {piece.shard_index for piece in run.pieces}
        for row in range(len(run.pieces)):
            run.clock.call_later(run.latency, partial(self.serve_pull, row))
        run.clock.call_later(
            float(run.own.data_ns[step, rank] + run.own.gc_ns[step, rank]), self.free
        )

    def serve_pull(self, row: int) -> None:
        run, shard = self.run, self.run.pieces[row].shard_index
        work = run.wire(self.step, row)
        callback = partial(run.clock.call_later, run.latency, partial(self.arrived, row))
        if run.scenario.shared_links:
            run.shared_out[shard].serve(work, callback, self.rank)
        else:
            run.going[shard].serve(work, callback)

    def arrived(self, row: int) -> None:
        self.missing[self.place[self.run.pieces[row].variable_index]] -= 1
        self.go_on()

    def free(self) -> None:
        self.computing = False
        self.go_on()

    def go_on(self) -> None:
        if self.computing:
            return
        if self.next < len(self.rows):
            if not self.missing[self.next]:
                lasts = (
                    float(self.run.own.forward_ns[self.step, self.rank]) * self.shares[self.next]
                )
                self.next, self.computing = self.next + 1, True
                self.run.clock.call_later(lasts, self.free)
            return
        self.computing = True
        backprop = float(self.run.own.backprop_ns[self.step, self.rank])
        remaining_shares = 1 - np.cumsum(self.shares) + self.shares
        for place, rows in enumerate(self.rows):
            for row in rows:
                self.run.clock.call_later(
                    backprop * remaining_shares[place], partial(self.push, row)
                )
        self.run.clock.call_later(backprop, self.was_computed)

    def push(self, row: int) -> None:
        shard = self.run.pieces[row].shard_index
        self.run.push(self.rank, self.step, row, partial(self.was_applied, shard))

    def was_applied(self, shard: int) -> None:
        self.run.clock.call_later(self.run.latency, partial(self.finish_push, shard))

    def finish_push(self, shard: int) -> None:
        self.left.discard(shard)
        self.end()

    def was_computed(self) -> None:
        self.computed = True
        self.end()

    def end(self) -> None:
        if self.computed and not self.left:
            self.computed = False
            self.run.begin(self.rank, self.step + 1)


def measure_duration_ns(scenario: Scenario, *, own_link: bool = False) -> float:
    """Return how long a scenario's run is without a barrier.

    Args:
        scenario: With shards.
        own_link: Replies after compute have a link of their own; else processors send them in turn.
    """
    return _Run(scenario, own_link=own_link or scenario.beside_compute).run()
