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
from tracelens.simulator.allreduce import draw_compute_times, only, record_step, span_columns
from tracelens.simulator.parameter_server import on_shard, queue, received, request_ids, used_shards
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
        self._held = {shard: scenario.pieces_of(shard) for shard in used_shards(scenario)}
        self._latency = round(scenario.latency_us * 1_000)
        self._service, self._per_byte = durations.services(scenario), durations.wires(scenario)
        self._free = dict.fromkeys(
            self._held, np.int64(ORIGIN_NS)
        )  # from when on a shard can add up

    def pull(self, step: int, now_ns: Ints) -> Ints:
        """Ask for everything at `now_ns`, [rank]; return when each piece is here, [rank, piece]."""
        times = self._times_of_step(step)
        times["pull"][:], times["asked"][:] = now_ns[:, None], now_ns[:, None] + self._latency
        for shard, (columns, sizes) in self._held.items():
            asked_ns, wire_ns = times["asked"][:, columns], self._wire_ns(step, shard, sizes)
            if self.scenario.shared_links:
                reply_ns, replied_ns = self._share_link(asked_ns, wire_ns)
            else:
                reply_ns, replied_ns, _ = queue(asked_ns, wire_ns, np.int64(0))
            times["reply"][:, columns], times["replied"][:, columns] = reply_ns, replied_ns
        times["pull_end"][:] = times["replied"] + self._latency
        return times["pull_end"]

    def _share_link(self, asked_ns: Ints, wire_ns: Ints) -> tuple[Ints, Ints]:
        """Return begin and end of the answers, ns, [rank, piece], on a link that workers share evenly.

        All ask at once, as a token starts all of them; each has its pieces in forward order.
        """
        others = self.scenario.ranks - 1
        done_ns = np.rint(np.cumsum(wire_ns) * ((1 + others) * (1 + self.scenario.incast * others)))
        end_ns = asked_ns + done_ns.astype(np.int64)
        return np.concatenate([asked_ns[:, :1], end_ns[:, :-1]], axis=1), end_ns

    def push(self, step: int, ready_ns: Ints) -> np.int64:
        """Push pieces when they are ready, [rank, piece]; return when all are known as applied."""
        scenario, times = self.scenario, self._times_of_step(step)
        times["push"][:], times["arrive"][:] = ready_ns, ready_ns + self._latency
        for shard, (columns, sizes) in self._held.items():
            wire_ns = self._wire_ns(step, shard, sizes)
            work_ns = np.rint(self._service[step, shard] * sizes / max(int(sizes.sum()), 1))
            received_ns = received(scenario, times["arrive"][:, columns], wire_ns)
            queue_times = queue(received_ns, work_ns.astype(np.int64), self._free[shard])
            times["received"][:, columns] = received_ns
            for name, values in zip(("serve", "served", "depth"), queue_times, strict=True):
                times[name][:, columns] = values
            applied_ns = queue_times[1].max() + round(scenario.apply_ms * MILLISECOND)
            self.applied[step, shard] = queue_times[1].max(), applied_ns
            self._free[shard] = applied_ns
        return np.int64(self.applied[step, :, 1].max() + self._latency)

    def _times_of_step(self, step: int) -> dict[str, Ints]:
        return {name: array[step] for name, array in self.times.items()}

    def _wire_ns(self, step: int, shard: int, sizes: Ints) -> Ints:
        each = self.scenario.message_ms * MILLISECOND
        return np.asarray(np.rint(each + sizes * self._per_byte[step, shard]).astype(np.int64))

    def record(self, sheet: Sheet) -> None:
        """Add both sides of all requests."""
        self._record_workers(sheet)
        for shard in self._held:
            self._record_shard(sheet, shard)

    def _record_workers(self, sheet: Sheet) -> None:
        scenario, times = self.scenario, self.times
        shard = np.array([piece.shard for piece in scenario.pieces])
        columns = _request_columns(scenario) | {
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
            sheet.spans(times[op], end, name=op, kind="ps", op=op, request=ids, **columns)

    def _record_shard(self, sheet: Sheet, shard: int) -> None:
        scenario = self.scenario
        piece_rows, sizes = self._held[shard]
        times = {name: array[..., piece_rows] for name, array in self.times.items()}
        keys = np.array([scenario.pieces[column].variable for column in piece_rows])
        columns: dict[str, Any] = on_shard(scenario, shard) | {"key": keys}
        columns |= {"step": np.arange(scenario.steps)[:, None, None]}
        columns |= {"peer": np.arange(scenario.ranks)[:, None]}
        push_columns = columns | {
            "request": request_ids(scenario, pull=False)[..., piece_rows],
            "bytes": sizes,
        }
        pull_columns = columns | {"request": request_ids(scenario, pull=True)[..., piece_rows]}
        receive_columns = {"thread": 1, "op": "receive", "name": "receive"}
        sheet.spans(times["arrive"], times["received"], **(push_columns | receive_columns))
        sheet.spans(
            times["asked"], times["asked"], **(pull_columns | receive_columns | {"bytes": 0})
        )
        aggregate_columns = {"queue_depth": times["depth"], "op": "aggregate", "name": "aggregate"}
        sheet.spans(times["serve"], times["served"], **(push_columns | aggregate_columns))
        reply_columns = pull_columns | {"op": "reply", "name": "reply", "bytes": sizes}
        sheet.spans(times["reply"], times["replied"], **reply_columns)
        begin_ns, end_ns = self.applied[:, shard].T
        apply_columns = on_shard(scenario, shard) | {
            "step": np.arange(scenario.steps),
            "peer": None,
        }
        sheet.spans(begin_ns, end_ns, **(apply_columns | {"op": "apply", "name": "apply"}))


def simulate(scenario: Scenario, sheet: Sheet) -> None:
    """Add the events of workers and shards of a whole run to `sheet`, in true time."""
    compute_times, exchange = draw_compute_times(scenario), _Exchange(scenario)
    shape = (scenario.steps, scenario.ranks)
    start_ns, forward_end, backprop_end, end_ns = (np.zeros(shape, np.int64) for _ in range(4))
    shares, first_pieces, of_piece = _list_variables(scenario)
    waits_ns = np.zeros((2, *shape, len(shares)), np.int64)
    now_ns = np.full(scenario.ranks, ORIGIN_NS, np.int64)
    done_share = 1 - np.cumsum(shares) + shares  # how much of backprop is done when a gradient is
    for step in range(scenario.steps):
        start_ns[step] = now_ns
        arrived_ns = np.maximum.reduceat(exchange.pull(step, now_ns), first_pieces, axis=1)
        begin_ns = now_ns + compute_times.data[step] + compute_times.gc[step]
        waits_ns[:, step], forward_end[step] = _run_forward(
            begin_ns, arrived_ns, compute_times.forward[step], shares
        )
        ready_ns = forward_end[step][:, None] + np.rint(
            compute_times.backprop[step][:, None] * done_share
        )
        backprop_end[step] = forward_end[step] + compute_times.backprop[step]
        token_ns = exchange.push(step, ready_ns.astype(np.int64)[:, of_piece])
        now_ns = end_ns[step] = np.maximum(backprop_end[step], token_ns)
    _record_phases(scenario, sheet, compute_times, (start_ns, forward_end, backprop_end, end_ns))
    _record_waits(sheet, scenario, waits_ns)
    record_step(scenario, sheet, start_ns, end_ns)
    exchange.record(sheet)


def _list_variables(scenario: Scenario) -> tuple[Floats, Indices, Indices]:
    """Return each variable's share of compute, its first piece, and the variable of each piece."""
    of_piece = np.array([piece.variable for piece in scenario.pieces], np.intp)
    present, first_pieces, inverse = np.unique(of_piece, return_index=True, return_inverse=True)
    work = np.array(scenario.work or [1.0] * (int(present.max()) + 1))[present]
    return work / work.sum(), first_pieces, inverse


def _run_forward(
    begin_ns: Ints, arrived_ns: Ints, forward_ns: Ints, shares: Floats
) -> tuple[Any, Ints]:
    """Return the wait for each variable, ns, [begin or end, rank, variable], and forward's end, [rank].

    A variable's forward starts when the one before it is through and the variable is here.
    """
    done_ns = np.rint(np.cumsum(forward_ns[:, None] * shares, axis=1)).astype(np.int64)
    before_ns = np.concatenate([np.zeros((len(done_ns), 1), np.int64), done_ns[:, :-1]], axis=1)
    able_ns = np.maximum.accumulate(np.maximum(arrived_ns - before_ns, begin_ns[:, None]), axis=1)
    end_ns = able_ns + done_ns
    free_ns = np.concatenate([begin_ns[:, None], end_ns[:, :-1]], axis=1)
    return np.stack([free_ns, able_ns + before_ns]), end_ns[:, -1]


def _request_columns(scenario: Scenario) -> dict[str, Any]:
    rank = np.arange(scenario.ranks)[:, None]
    step = np.arange(scenario.steps)[:, None, None]
    return span_columns(scenario) | {"process": rank, "rank": rank, "step": step}


def _record_phases(
    scenario: Scenario,
    sheet: Sheet,
    compute_times: ComputeTimes,
    step_times_ns: tuple[Ints, Ints, Ints, Ints],
) -> None:
    """Add the workers' phases."""
    start_ns, forward_end, backprop_end, end_ns = step_times_ns
    columns = span_columns(scenario)
    data_end = start_ns + compute_times.data
    sheet.spans(start_ns, data_end, name="next_batch", kind="data", **columns)
    only(sheet, data_end, compute_times.gc, name="gc", kind="gc", **columns)
    sheet.spans(data_end + compute_times.gc, forward_end, name="forward", kind="forward", **columns)
    sheet.spans(forward_end, backprop_end, name="backprop", kind="backprop", **columns)
    sheet.spans(backprop_end, end_ns, name="wait_token", kind="wait", **columns)


def _record_waits(sheet: Sheet, scenario: Scenario, waits_ns: Ints) -> None:
    """Add, inside forward, where a variable was waited for."""
    begin_ns, end_ns = waits_ns
    steps, ranks, _ = position = np.nonzero(end_ns > begin_ns)
    if len(steps):
        columns = span_columns(scenario, 2) | {"process": ranks, "rank": ranks, "step": steps}
        sheet.spans(begin_ns[position], end_ns[position], name="wait_pull", kind="wait", **columns)
