"""Simulates synchronous training with parameter servers whose transfers go on beside compute.

At a step's begin a worker asks for all variables. Answers share the shard's link evenly, or go one
after the other in forward order. Forward of a variable starts when the one before it is through and
all pieces of it are here; backprop goes backwards, and pushes each gradient when it is made. A shard
adds pushes up in order of arrival and applies them after the last one. The step ends for all when
everything is applied: a token (`SyncReplicasOptimizer`, TensorFlow 1.x). Links are full duplex, so
pushes do not slow down pulls; the workers' own links are taken for fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens.simulator import durations
from tracelens.simulator.allreduce import at, draw_compute_times, only, record_step
from tracelens.simulator.parameter_server import on_shard, queue, received, request_ids, used
from tracelens.simulator.scenario import MILLISECOND, ORIGIN_NS

if TYPE_CHECKING:
    from tracelens.arrays import Floats, Indices, Ints
    from tracelens.simulator.allreduce import ComputeTimes
    from tracelens.simulator.scenario import Scenario
    from tracelens.simulator.sheet import Sheet

_REQUEST_TIMES: Final = (
    *("pull", "asked", "reply", "replied", "pull_end"),
    *("push", "arrive", "received", "serve", "served", "depth"),
)


class _Exchange:
    """The requests of a whole run: when each stage of each was, [step, rank, piece]."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        shape = (scenario.steps, scenario.ranks, len(scenario.pieces))
        self.times = {name: np.zeros(shape, np.int64) for name in _REQUEST_TIMES}
        self.applied = np.zeros((scenario.steps, scenario.shards, 2), np.int64)
        self._held = {shard: scenario.pieces_of(shard) for shard in used(scenario)}
        self._latency = round(scenario.latency_us * 1_000)
        self._service, self._per_byte = durations.services(scenario), durations.wires(scenario)
        self._free = dict.fromkeys(
            self._held, np.int64(ORIGIN_NS)
        )  # from when on a shard can add up

    def pull(self, step: int, now: Ints) -> Ints:
        """Ask for everything at `now`, [rank]; return when each piece is here, [rank, piece]."""
        out = self._at(step)
        out["pull"][:], out["asked"][:] = now[:, None], now[:, None] + self._latency
        for shard, (columns, sizes) in self._held.items():
            asked, wire = out["asked"][:, columns], self._wire(step, shard, sizes)
            if self.scenario.shared_links:
                reply, replied = self._shared(asked, wire)
            else:
                reply, replied, _ = queue(asked, wire, np.int64(0))
            out["reply"][:, columns], out["replied"][:, columns] = reply, replied
        out["pull_end"][:] = out["replied"] + self._latency
        return out["pull_end"]

    def _shared(self, asked: Ints, wire: Ints) -> tuple[Ints, Ints]:
        """Return begin and end of the answers, [rank, piece], on a link that workers share evenly.

        All ask at once, as a token starts all of them; each has its pieces in forward order.
        """
        others = self.scenario.ranks - 1
        done = np.rint(np.cumsum(wire) * ((1 + others) * (1 + self.scenario.incast * others)))
        ends = asked + done.astype(np.int64)
        return np.concatenate([asked[:, :1], ends[:, :-1]], axis=1), ends

    def push(self, step: int, ready: Ints) -> np.int64:
        """Push pieces when they are ready, [rank, piece]; return when all are known as applied."""
        scenario, out = self.scenario, self._at(step)
        out["push"][:], out["arrive"][:] = ready, ready + self._latency
        for shard, (columns, sizes) in self._held.items():
            wire = self._wire(step, shard, sizes)
            work = np.rint(self._service[step, shard] * sizes / max(int(sizes.sum()), 1))
            through = received(scenario, out["arrive"][:, columns], wire)
            found = queue(through, work.astype(np.int64), self._free[shard])
            out["received"][:, columns] = through
            for name, values in zip(("serve", "served", "depth"), found, strict=True):
                out[name][:, columns] = values
            end = found[1].max() + round(scenario.apply_ms * MILLISECOND)
            self.applied[step, shard] = found[1].max(), end
            self._free[shard] = end
        return np.int64(self.applied[step, :, 1].max() + self._latency)

    def _at(self, step: int) -> dict[str, Ints]:
        return {name: array[step] for name, array in self.times.items()}

    def _wire(self, step: int, shard: int, sizes: Ints) -> Ints:
        each = self.scenario.message_ms * MILLISECOND
        return np.rint(each + sizes * self._per_byte[step, shard]).astype(np.int64)

    def record(self, sheet: Sheet) -> None:
        """Add both sides of all requests."""
        self._record_workers(sheet)
        for shard in self._held:
            self._record_shard(sheet, shard)

    def _record_workers(self, sheet: Sheet) -> None:
        scenario, times = self.scenario, self.times
        shard = np.array([piece.shard for piece in scenario.pieces])
        place = _of_requests(scenario) | {
            "thread": 1 + shard,
            "depth": 0,
            "shard": shard,
            "peer": shard,
            "bytes": np.array([piece.nbytes for piece in scenario.pieces]),
            "key": np.array([piece.variable for piece in scenario.pieces]),
        }
        for op, end in (
            ("pull", times["pull_end"]),
            ("push", times["served"] + self._latency),
        ):
            ids = request_ids(scenario, pull=op == "pull")
            sheet.spans(times[op], end, name=op, kind="ps", op=op, request=ids, **place)

    def _record_shard(self, sheet: Sheet, shard: int) -> None:
        scenario = self.scenario
        columns, sizes = self._held[shard]
        part = {name: array[..., columns] for name, array in self.times.items()}
        keys = np.array([scenario.pieces[column].variable for column in columns])
        both: dict[str, Any] = on_shard(scenario, shard) | {"key": keys}
        both |= {"step": np.arange(scenario.steps)[:, None, None]}
        both |= {"peer": np.arange(scenario.ranks)[:, None]}
        push = both | {"request": request_ids(scenario, pull=False)[..., columns], "bytes": sizes}
        pull = both | {"request": request_ids(scenario, pull=True)[..., columns]}
        network = {"thread": 1, "op": "receive", "name": "receive"}
        sheet.spans(part["arrive"], part["received"], **(push | network))
        sheet.spans(part["asked"], part["asked"], **(pull | network | {"bytes": 0}))
        adds = {"queue_depth": part["depth"], "op": "aggregate", "name": "aggregate"}
        sheet.spans(part["serve"], part["served"], **(push | adds))
        answers = pull | {"op": "reply", "name": "reply", "bytes": sizes}
        sheet.spans(part["reply"], part["replied"], **answers)
        begin, end = self.applied[:, shard].T
        once = on_shard(scenario, shard) | {"step": np.arange(scenario.steps), "peer": None}
        sheet.spans(begin, end, **(once | {"op": "apply", "name": "apply"}))


def simulate(scenario: Scenario, sheet: Sheet) -> None:
    """Add the events of workers and shards of a whole run to `sheet`, in true time."""
    own, exchange = draw_compute_times(scenario), _Exchange(scenario)
    shape = (scenario.steps, scenario.ranks)
    start, forward_end, backprop_end, end = (np.zeros(shape, np.int64) for _ in range(4))
    shares, first, of_piece = _variables(scenario)
    waits = np.zeros((2, *shape, len(shares)), np.int64)
    now = np.full(scenario.ranks, ORIGIN_NS, np.int64)
    made = 1 - np.cumsum(shares) + shares  # how much of backprop is done when a gradient is
    for step in range(scenario.steps):
        start[step] = now
        arrived = np.maximum.reduceat(exchange.pull(step, now), first, axis=1)
        begin = now + own.data[step] + own.gc[step]
        waits[:, step], forward_end[step] = _forward(begin, arrived, own.forward[step], shares)
        ready = forward_end[step][:, None] + np.rint(own.backprop[step][:, None] * made)
        backprop_end[step] = forward_end[step] + own.backprop[step]
        token = exchange.push(step, ready.astype(np.int64)[:, of_piece])
        now = end[step] = np.maximum(backprop_end[step], token)
    _record(scenario, sheet, own, (start, forward_end, backprop_end, end))
    _record_waits(sheet, scenario, waits)
    record_step(scenario, sheet, start, end)
    exchange.record(sheet)


def _variables(scenario: Scenario) -> tuple[Floats, Indices, Indices]:
    """Return each variable's share of compute, its first piece, and the variable of each piece."""
    of_piece = np.array([piece.variable for piece in scenario.pieces], np.intp)
    present, first, inverse = np.unique(of_piece, return_index=True, return_inverse=True)
    work = np.array(scenario.work or [1.0] * (int(present.max()) + 1))[present]
    return work / work.sum(), first, inverse


def _forward(begin: Ints, arrived: Ints, lasts: Ints, shares: Floats) -> tuple[Any, Ints]:
    """Return begin and end of what each variable is waited for, [2, rank, variable], and forward's end.

    A variable's forward starts when the one before it is through and the variable is here.
    """
    done = np.rint(np.cumsum(lasts[:, None] * shares, axis=1)).astype(np.int64)
    before = np.concatenate([np.zeros((len(done), 1), np.int64), done[:, :-1]], axis=1)
    able = np.maximum.accumulate(np.maximum(arrived - before, begin[:, None]), axis=1)
    ends = able + done
    free = np.concatenate([begin[:, None], ends[:, :-1]], axis=1)
    return np.stack([free, able + before]), ends[:, -1]


def _of_requests(scenario: Scenario) -> dict[str, Any]:
    rank = np.arange(scenario.ranks)[:, None]
    step = np.arange(scenario.steps)[:, None, None]
    return at(scenario) | {"process": rank, "rank": rank, "step": step}


def _record(
    scenario: Scenario, sheet: Sheet, own: ComputeTimes, times: tuple[Ints, Ints, Ints, Ints]
) -> None:
    """Add the workers' phases."""
    start, forward_end, backprop_end, end = times
    place = at(scenario)
    data_end = start + own.data
    sheet.spans(start, data_end, name="next_batch", kind="data", **place)
    only(sheet, data_end, own.gc, name="gc", kind="gc", **place)
    sheet.spans(data_end + own.gc, forward_end, name="forward", kind="forward", **place)
    sheet.spans(forward_end, backprop_end, name="backprop", kind="backprop", **place)
    sheet.spans(backprop_end, end, name="wait_token", kind="wait", **place)


def _record_waits(sheet: Sheet, scenario: Scenario, waits: Ints) -> None:
    """Add, inside forward, where a variable was waited for."""
    begin, end = waits
    steps, ranks, _ = where = np.nonzero(end > begin)
    if len(steps):
        place = at(scenario, 2) | {"process": ranks, "rank": ranks, "step": steps}
        sheet.spans(begin[where], end[where], name="wait_pull", kind="wait", **place)
