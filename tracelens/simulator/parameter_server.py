"""Simulates synchronous training with parameter servers: shards with a first-in-first-out queue.

Each step a worker pushes its gradient's part (or, of `variables`, each one's gradient) to every
shard together and then pulls the new weights. How pushes share a shard's link is up to the
scenario: all on it get equal parts, and less gets done the more it has. A shard adds the pushes up
in order of arrival, applies them after the last one, and then answers the pulls in order of
arrival. Requests carry ids, so both sides of each are known.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens.schema.record import request_id
from tracelens.simulator import durations
from tracelens.simulator.allreduce import (
    draw_compute_times,
    record_compute,
    record_step,
    span_columns,
)
from tracelens.simulator.scenario import MILLISECOND, ORIGIN_NS

if TYPE_CHECKING:
    from tracelens.arrays import Ints
    from tracelens.simulator.scenario import Scenario
    from tracelens.simulator.sheet import Sheet

_TIMES: Final = (
    *("push", "arrive", "received", "serve", "served", "push_end", "depth"),
    *("pull", "asked", "reply", "replied", "pull_end"),
)


class Exchange:
    """The requests of a whole run: the times of each, ns, and its queue depth, [step, rank, piece]."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        shape = (scenario.steps, scenario.ranks, len(scenario.pieces))
        self._times = {name: np.zeros(shape, np.int64) for name in _TIMES}
        self._applied_ns = np.zeros((scenario.steps, scenario.shards, 2), np.int64)  # begin, end
        shards = sorted({piece.shard for piece in scenario.pieces})
        self._pieces = {shard: scenario.pieces_of(shard) for shard in shards}  # rows and bytes
        self._latency_ns = round(scenario.latency_us * 1_000)
        self._service_ns = durations.services(scenario)
        self._ns_per_byte = durations.wires(scenario)
        self._free_ns = dict.fromkeys(shards, np.int64(ORIGIN_NS))  # a shard serves from then on

    def push(self, step: int, ready_ns: Ints) -> np.int64:
        """Push pieces when they are ready, [rank, piece]; return when all know that they are applied."""
        times = self._times_of_step(step)
        times["push"][:], times["arrive"][:] = ready_ns, ready_ns + self._latency_ns
        for shard, (rows, sizes) in self._pieces.items():
            wire_ns = self._wire_ns(step, shard, sizes)
            work_ns = np.rint(self._service_ns[step, shard] * sizes / max(int(sizes.sum()), 1))
            received_ns = _receive(self._scenario, times["arrive"][:, rows], wire_ns)
            queue_times = _queue(received_ns, work_ns.astype(np.int64), self._free_ns[shard])
            times["received"][:, rows] = received_ns
            for name, values in zip(("serve", "served", "depth"), queue_times, strict=True):
                times[name][:, rows] = values
            served_ns = queue_times[1].max()
            self._free_ns[shard] = served_ns + round(self._scenario.apply_ms * MILLISECOND)
            self._applied_ns[step, shard] = served_ns, self._free_ns[shard]
        times["push_end"][:] = times["served"] + self._latency_ns
        return np.int64(self._applied_ns[step, :, 1].max() + self._latency_ns)

    def pull(self, step: int, now_ns: Ints) -> Ints:
        """Ask for all pieces at `now_ns`, [rank]; return when each has arrived, ns, [rank, piece]."""
        times, beside_compute = self._times_of_step(step), self._scenario.beside_compute
        times["pull"][:], times["asked"][:] = now_ns[:, None], now_ns[:, None] + self._latency_ns
        for shard, (rows, sizes) in self._pieces.items():
            asked_ns, wire_ns = times["asked"][:, rows], self._wire_ns(step, shard, sizes)
            if beside_compute and self._scenario.shared_links:
                reply_ns, replied_ns = self._share_link(asked_ns, wire_ns)
            else:
                reply_ns, replied_ns, _ = _queue(asked_ns, wire_ns, self._free_ns[shard])
            times["reply"][:, rows], times["replied"][:, rows] = reply_ns, replied_ns
            if not beside_compute:
                self._free_ns[shard] = replied_ns.max()
        times["pull_end"][:] = times["replied"] + self._latency_ns
        return times["pull_end"]

    def end_of_pushes(self, step: int) -> Ints:
        """Return when each worker knows that its pushes were added up, ns, [rank]."""
        return np.asarray(self._times["push_end"][step].max(axis=1))

    def _share_link(self, asked_ns: Ints, wire_ns: Ints) -> tuple[Ints, Ints]:
        """Return begin and end of the replies, ns, [rank, piece], on a link that workers share evenly.

        All ask together, as a token starts all of them; each has its pieces in forward order.
        """
        others = self._scenario.ranks - 1
        incast = 1 + self._scenario.incast * others
        done_ns = np.rint(np.cumsum(wire_ns) * ((1 + others) * incast))
        end_ns = asked_ns + done_ns.astype(np.int64)
        return np.concatenate([asked_ns[:, :1], end_ns[:, :-1]], axis=1), end_ns

    def _times_of_step(self, step: int) -> dict[str, Ints]:
        return {name: array[step] for name, array in self._times.items()}

    def _wire_ns(self, step: int, shard: int, sizes: Ints) -> Ints:
        message_ns = self._scenario.message_ms * MILLISECOND
        wire_ns = np.rint(message_ns + sizes * self._ns_per_byte[step, shard])
        return np.asarray(wire_ns.astype(np.int64))

    def record(self, sheet: Sheet) -> None:
        """Add both sides of all requests."""
        scenario, times = self._scenario, self._times
        pieces = {
            name: np.array([getattr(piece, name) for piece in scenario.pieces])
            for name in ("shard", "nbytes", "variable")
        }
        with_keys = scenario.variables or scenario.beside_compute
        request_ids = {op: _request_ids(scenario, pull=op == "pull") for op in ("push", "pull")}
        rank, step = np.arange(scenario.ranks)[:, None], np.arange(scenario.steps)[:, None, None]
        columns = span_columns(scenario, 0) | {"process": rank, "rank": rank, "step": step}
        columns |= {"thread": 1 + pieces["shard"], "shard": pieces["shard"], "kind": "ps"}
        columns |= {"bytes": pieces["nbytes"], "key": pieces["variable"] if with_keys else None}
        for op in ("pull", "push") if scenario.beside_compute else ("push", "pull"):
            begin_ns, end_ns = times[op], times[f"{op}_end"]
            if not scenario.beside_compute:
                waits = {"name": f"wait_{op}", "kind": "wait"} | span_columns(scenario)
                sheet.spans(begin_ns[..., 0], end_ns.max(axis=-1), **waits)
            columns |= {"peer": pieces["shard"], "name": op, "op": op, "request": request_ids[op]}
            sheet.spans(begin_ns, end_ns, **columns)
        for shard, (rows, sizes) in self._pieces.items():
            columns = _shard_columns(scenario, shard) | {"step": step, "peer": rank, "bytes": sizes}
            columns |= {"key": pieces["variable"][rows] if with_keys else None}
            push, pull = (
                columns | {"request": request_ids[op][..., rows]} for op in ("push", "pull")
            )
            self._record_shard(sheet, shard, push, pull)

    def _record_shard(
        self, sheet: Sheet, shard: int, push: dict[str, Any], pull: dict[str, Any]
    ) -> None:
        """Add the spans of a shard; `push` and `pull` are the columns of its requests."""
        rows, _ = self._pieces[shard]
        times = {name: array[..., rows] for name, array in self._times.items()}
        receive = {"thread": 1, "op": "receive", "name": "receive"}
        aggregate = {"queue_depth": times["depth"], "op": "aggregate", "name": "aggregate"}
        sheet.spans(times["arrive"], times["received"], **(push | receive))
        sheet.spans(times["asked"], times["asked"], **(pull | receive | {"bytes": 0}))
        sheet.spans(times["serve"], times["served"], **(push | aggregate))
        sheet.spans(times["reply"], times["replied"], **(pull | {"op": "reply", "name": "reply"}))
        begin_ns, end_ns = self._applied_ns[:, shard].T
        apply = {"step": np.arange(self._scenario.steps), "peer": None, "op": "apply"}
        columns = _shard_columns(self._scenario, shard) | apply | {"name": "apply"}
        sheet.spans(begin_ns, end_ns, **columns)


def simulate(scenario: Scenario, sheet: Sheet) -> None:
    """Add the events of workers and shards of a whole run to `sheet`, in true time."""
    compute, exchange = draw_compute_times(scenario), Exchange(scenario)
    compute_ns = compute.data + compute.forward + compute.gc + compute.backprop
    start_ns, end_ns = (np.zeros((scenario.steps, scenario.ranks), np.int64) for _ in range(2))
    now_ns = np.full(scenario.ranks, ORIGIN_NS, np.int64)
    for step in range(scenario.steps):
        start_ns[step] = now_ns
        exchange.push(step, (now_ns + compute_ns[step])[:, None])
        now_ns = end_ns[step] = exchange.pull(step, exchange.end_of_pushes(step)).max(axis=1)
    record_compute(scenario, sheet, compute, start_ns, None)
    record_step(scenario, sheet, start_ns, end_ns)
    exchange.record(sheet)


def _through_shared_link(arrive_ns: Ints, alone_ns: Ints, incast: float) -> Ints:
    """Return the completion time of each message, ns; equal messages at one time are simulated as one.

    Args:
        arrive_ns: Arrival of each message, ns.
        alone_ns: Time of each message on an otherwise idle link, ns.
        incast: n messages together get 1 / (1 + `incast` (n - 1)) of the link's work done.
    """
    distinct_messages, group_of_message = np.unique(
        np.stack([arrive_ns, alone_ns]), axis=1, return_inverse=True
    )
    message_counts = np.bincount(group_of_message).tolist()
    times_ns, works_ns = distinct_messages.astype(float).tolist()
    through_ns = np.zeros(len(times_ns))
    waiting: list[tuple[float, int]] = []  # `done_work_ns` at the end of each group, and the group
    done_work_ns, now_ns, next_group, count = 0.0, 0.0, 0, 0
    while waiting or next_group < len(times_ns):
        pace = 1 / (count * (1 + incast * (count - 1))) if count else 0.0
        done_ns = now_ns + (waiting[0][0] - done_work_ns) / pace if count else np.inf
        if next_group < len(times_ns) and times_ns[next_group] <= done_ns:
            done_work_ns += (times_ns[next_group] - now_ns) * pace
            now_ns = times_ns[next_group]
            heappush(waiting, (done_work_ns + works_ns[next_group], next_group))
            count += message_counts[next_group]
            next_group += 1
        else:
            done_work_ns, messages = heappop(waiting)
            now_ns = through_ns[messages] = done_ns
            count -= message_counts[messages]
    return np.rint(through_ns).astype(np.int64)[group_of_message]


def _receive(scenario: Scenario, arrive_ns: Ints, wire_ns: Ints) -> Ints:
    """Return when each push is received, ns, [rank, piece]; alone it takes `wire_ns`, [piece].

    Without shared links each worker's pushes take turns in order of arrival.
    """
    if not scenario.shared_links:
        free_ns = np.int64(ORIGIN_NS)
        return np.stack([_queue(row[None], wire_ns, free_ns)[1][0] for row in arrive_ns])
    work_ns = np.broadcast_to(wire_ns, arrive_ns.shape)
    return _through_shared_link(arrive_ns.ravel(), work_ns.ravel(), scenario.incast).reshape(
        arrive_ns.shape
    )


def _queue(arrive_ns: Ints, work_ns: Ints, free_ns: np.int64) -> tuple[Ints, Ints, Ints]:
    """Serve in order of arrival, one at a time; return start, end and queue depth, [rank, piece].

    `arrive_ns` is [rank, piece], `work_ns`, [piece], the service time; nothing is served before
    `free_ns`.
    """
    flat_ns = arrive_ns.ravel()
    order = np.argsort(flat_ns, kind="stable")
    service_ns = np.broadcast_to(work_ns, arrive_ns.shape).ravel()[order]
    done_ns = np.cumsum(service_ns)
    able_ns = np.maximum(flat_ns[order], free_ns)
    end_ns = np.maximum.accumulate(able_ns - (done_ns - service_ns)) + done_ns
    start_ns = end_ns - service_ns
    queue_depth = (
        np.searchsorted(flat_ns[order], start_ns, side="right") - np.arange(len(flat_ns)) - 1
    )
    result = np.empty((3, len(flat_ns)), np.int64)
    result[:, order] = start_ns, end_ns, queue_depth
    begin, end, depth = result.reshape(3, *arrive_ns.shape)
    return begin, end, depth


def _request_ids(scenario: Scenario, *, pull: bool) -> Ints:
    """Return the request ids, [step, rank, piece]."""
    steps = np.arange(scenario.steps)[:, None, None]
    ranks = np.arange(scenario.ranks)[None, :, None]
    pieces = len(scenario.pieces)
    counter = (2 * steps + pull) * pieces + np.arange(pieces) + 1
    return np.asarray(counter + ranks * request_id(1, 0))


def _shard_columns(scenario: Scenario, shard: int) -> dict[str, Any]:
    """Return the columns that all spans of a shard share."""
    return {
        "process": scenario.ranks + shard,
        "rank": shard,
        "role": "ps",
        "shard": shard,
        "kind": "ps",
    }
