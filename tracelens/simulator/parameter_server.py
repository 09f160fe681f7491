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
    make_span_columns,
    record_compute,
    record_step,
)
from tracelens.simulator.scenario import MILLISECOND, ORIGIN_NS

if TYPE_CHECKING:
    from tracelens.arrays import Ints
    from tracelens.simulator.scenario import Scenario
    from tracelens.simulator.sheet import Sheet

# When a push is sent, arrives at its shard, is received, is added up (begin, end), is known to be;
# its queue depth; when a pull is sent, arrives, is answered (begin, end), and has its answer.
_TIMES: Final = (
    *("push", "push_arrival", "receive_end", "aggregate_begin", "aggregate_end", "push_end"),
    *("queue_depth", "pull", "pull_arrival", "reply_begin", "reply_end", "pull_end"),
)


class Exchange:
    """The requests of a whole run: the times of each, ns, and its queue depth, [step, rank, piece]."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        request_shape = (scenario.steps, scenario.ranks, len(scenario.pieces))
        # By name, ns ("queue_depth" is a count), [step, rank, piece].
        self._times = {name: np.zeros(request_shape, np.int64) for name in _TIMES}
        self._applied_ns = np.zeros((scenario.steps, scenario.shards, 2), np.int64)  # begin, end
        shards = sorted({piece.shard_index for piece in scenario.pieces})
        # Of each shard the indices of its pieces, and their bytes.
        self._pieces_by_shard = {shard: scenario.find_pieces(shard) for shard in shards}
        self._latency_ns = round(scenario.latency_us * 1_000)
        self._service_ns = durations.draw_services(scenario)
        self._ns_per_byte = durations.draw_ns_per_byte(scenario)
        self._free_ns = dict.fromkeys(shards, np.int64(ORIGIN_NS))  # a shard serves from then on

    def push_pieces(self, step: int, ready_ns: Ints) -> np.int64:
        """Push pieces that are ready at `ready_ns`, [rank, piece], in a step (an index).

        Returns when all workers know that everything is applied, ns.
        """
        times = self._select_times(step)
        times["push"][:], times["push_arrival"][:] = ready_ns, ready_ns + self._latency_ns
        for shard, (pieces, nbytes) in self._pieces_by_shard.items():
            arrive_ns = times["push_arrival"][:, pieces]
            wire_ns = self._compute_wire_ns(step, shard, nbytes)
            exact_work_ns = self._service_ns[step, shard] * nbytes / max(int(nbytes.sum()), 1)
            work_ns = np.rint(exact_work_ns).astype(np.int64)
            received_ns = _compute_receive_ns(self._scenario, arrive_ns, wire_ns)
            begin_ns, end_ns, depth = _serve_in_order(received_ns, work_ns, self._free_ns[shard])
            times["receive_end"][:, pieces] = received_ns
            times["aggregate_begin"][:, pieces] = begin_ns
            times["aggregate_end"][:, pieces] = end_ns
            times["queue_depth"][:, pieces] = depth
            self._free_ns[shard] = end_ns.max() + round(self._scenario.apply_ms * MILLISECOND)
            self._applied_ns[step, shard] = end_ns.max(), self._free_ns[shard]
        times["push_end"][:] = times["aggregate_end"] + self._latency_ns
        return np.int64(self._applied_ns[step, :, 1].max() + self._latency_ns)

    def pull_pieces(self, step: int, now_ns: Ints) -> Ints:
        """Ask for all pieces at `now_ns`, [rank]; return when each arrives, ns, [rank, piece]."""
        times, beside_compute = self._select_times(step), self._scenario.beside_compute
        times["pull"][:] = now_ns[:, None]
        times["pull_arrival"][:] = times["pull"] + self._latency_ns
        for shard, (pieces, nbytes) in self._pieces_by_shard.items():
            asked_ns = times["pull_arrival"][:, pieces]
            wire_ns = self._compute_wire_ns(step, shard, nbytes)
            if beside_compute and self._scenario.shared_links:
                begin_ns, end_ns = self._share_link(asked_ns, wire_ns)
            else:
                begin_ns, end_ns, _ = _serve_in_order(asked_ns, wire_ns, self._free_ns[shard])
            times["reply_begin"][:, pieces], times["reply_end"][:, pieces] = begin_ns, end_ns
            if not beside_compute:
                self._free_ns[shard] = end_ns.max()
        times["pull_end"][:] = times["reply_end"] + self._latency_ns
        return times["pull_end"]

    def compute_push_ends(self, step: int) -> Ints:
        """Return when each worker knows that its pushes of a step were added up, ns, [rank]."""
        return np.asarray(self._times["push_end"][step].max(axis=1))

    def _share_link(self, asked_ns: Ints, wire_ns: Ints) -> tuple[Ints, Ints]:
        """Return begin and end of replies on a link that workers share evenly, ns, [rank, piece].

        All workers ask at the same time (`asked_ns`, [rank, piece]), and get pieces in forward order. A
        piece takes `wire_ns`, [piece], alone on the link.
        """
        other_count = self._scenario.ranks - 1
        incast_factor = 1 + self._scenario.incast * other_count
        sent_ns = np.rint(np.cumsum(wire_ns) * ((1 + other_count) * incast_factor))
        end_ns = asked_ns + sent_ns.astype(np.int64)
        return np.concatenate([asked_ns[:, :1], end_ns[:, :-1]], axis=1), end_ns

    def _select_times(self, step: int) -> dict[str, Ints]:
        """Return the times of a step by name, ns, [rank, piece], to be written into."""
        return {name: array[step] for name, array in self._times.items()}

    def _compute_wire_ns(self, step: int, shard: int, nbytes: Ints) -> Ints:
        """Return the time of each piece alone on a shard's link, ns, [piece]."""
        message_ns = self._scenario.message_ms * MILLISECOND
        wire_ns = np.rint(message_ns + nbytes * self._ns_per_byte[step, shard])
        return np.asarray(wire_ns.astype(np.int64))

    def add_request_spans(self, sheet: Sheet) -> None:
        """Add both sides of all requests."""
        scenario, times = self._scenario, self._times
        shards, nbytes, variables = (
            np.array([getattr(piece, name) for piece in scenario.pieces])
            for name in ("shard_index", "nbytes", "variable_index")
        )
        keys = variables if scenario.variables or scenario.beside_compute else None
        request_ids = {
            op: _make_request_ids(scenario, is_pull=op == "pull") for op in ("push", "pull")
        }
        ranks, steps = np.arange(scenario.ranks)[:, None], np.arange(scenario.steps)[:, None, None]
        # Arrays broadcast to [step, rank, piece].
        columns = make_span_columns(scenario, depth=0) | {"process": ranks, "rank": ranks}
        columns |= {"step": steps, "thread": 1 + shards, "shard": shards, "kind": "ps"}
        columns |= {"bytes": nbytes, "key": keys, "peer": shards}
        for op in ("pull", "push") if scenario.beside_compute else ("push", "pull"):
            begin_ns, end_ns = times[op], times[f"{op}_end"]
            if not scenario.beside_compute:
                wait = {"name": f"wait_{op}", "kind": "wait"} | make_span_columns(scenario)
                sheet.add_spans(begin_ns[..., 0], end_ns.max(axis=-1), **wait)
            columns |= {"name": op, "op": op, "request": request_ids[op]}
            sheet.add_spans(begin_ns, end_ns, **columns)
        for shard, (pieces, shard_bytes) in self._pieces_by_shard.items():
            columns = _make_shard_columns(scenario, shard) | {"step": steps, "peer": ranks}
            columns |= {"bytes": shard_bytes, "key": None if keys is None else keys[pieces]}
            push_columns, pull_columns = (
                columns | {"request": request_ids[op][..., pieces]} for op in ("push", "pull")
            )
            self._record_shard(sheet, shard, push_columns, pull_columns)

    def _record_shard(
        self, sheet: Sheet, shard: int, push_columns: dict[str, Any], pull_columns: dict[str, Any]
    ) -> None:
        """Add the spans of a shard, at its `_TIMES`; its pushes and pulls have these columns."""
        pieces, _ = self._pieces_by_shard[shard]
        times = {name: array[..., pieces] for name, array in self._times.items()}
        receive = {"thread": 1, "op": "receive", "name": "receive"}
        aggregate = {"queue_depth": times["queue_depth"], "op": "aggregate", "name": "aggregate"}
        sheet.add_spans(times["push_arrival"], times["receive_end"], **(push_columns | receive))
        ask_columns = pull_columns | receive | {"bytes": 0}
        sheet.add_spans(times["pull_arrival"], times["pull_arrival"], **ask_columns)
        begin_ns, end_ns = times["aggregate_begin"], times["aggregate_end"]
        sheet.add_spans(begin_ns, end_ns, **(push_columns | aggregate))
        reply = {"op": "reply", "name": "reply"}
        sheet.add_spans(times["reply_begin"], times["reply_end"], **(pull_columns | reply))
        begin_ns, end_ns = self._applied_ns[:, shard].T
        apply_columns = {"step": np.arange(self._scenario.steps), "peer": None, "op": "apply"}
        columns = _make_shard_columns(self._scenario, shard) | apply_columns | {"name": "apply"}
        sheet.add_spans(begin_ns, end_ns, **columns)


def simulate(scenario: Scenario, sheet: Sheet) -> None:
    """Add the events of workers and shards of a whole run to `sheet`, in true time."""
    compute, exchange = draw_compute_times(scenario), Exchange(scenario)
    compute_ns = compute.data_ns + compute.forward_ns + compute.gc_ns + compute.backprop_ns
    start_ns, end_ns = (np.zeros((scenario.steps, scenario.ranks), np.int64) for _ in range(2))
    now_ns = np.full(scenario.ranks, ORIGIN_NS, np.int64)  # [rank]
    for step in range(scenario.steps):
        start_ns[step] = now_ns
        exchange.push_pieces(step, (now_ns + compute_ns[step])[:, None])
        now_ns = end_ns[step] = exchange.pull_pieces(step, exchange.compute_push_ends(step)).max(
            axis=1
        )
    record_compute(scenario, sheet, compute, start_ns, update_begin_ns=None)
    record_step(scenario, sheet, start_ns, end_ns)
    exchange.add_request_spans(sheet)


def _send_on_shared_link(arrive_ns: Ints, alone_ns: Ints, incast: float) -> Ints:
    """Return when each message is through, ns, [message]; equal ones are simulated as a group.

    Args:
        arrive_ns: Arrival of each message, ns.
        alone_ns: Time of each message on an otherwise idle link, ns.
        incast: n messages together get 1 / (1 + `incast` (n - 1)) of the link's work done.
    """
    distinct_messages, group_of_message = np.unique(
        np.stack([arrive_ns, alone_ns]), axis=1, return_inverse=True
    )
    group_sizes = np.bincount(group_of_message).tolist()
    arrivals_ns, works_ns = distinct_messages.astype(float).tolist()
    through_ns = np.zeros(len(arrivals_ns))
    sending: list[tuple[float, int]] = []  # (`done_work_ns` when it is through, group), a heap
    done_work_ns = now_ns = 0.0  # work done for each message since the begin
    next_group, sending_count = 0, 0
    while sending or next_group < len(arrivals_ns):
        pace = 1 / (sending_count * (1 + incast * (sending_count - 1))) if sending_count else 0.0
        first_end_ns = now_ns + (sending[0][0] - done_work_ns) / pace if sending_count else np.inf
        if next_group < len(arrivals_ns) and arrivals_ns[next_group] <= first_end_ns:
            done_work_ns += (arrivals_ns[next_group] - now_ns) * pace
            now_ns = arrivals_ns[next_group]
            heappush(sending, (done_work_ns + works_ns[next_group], next_group))
            sending_count += group_sizes[next_group]
            next_group += 1
        else:
            done_work_ns, group = heappop(sending)
            now_ns = through_ns[group] = first_end_ns
            sending_count -= group_sizes[group]
    return np.rint(through_ns).astype(np.int64)[group_of_message]


def _compute_receive_ns(scenario: Scenario, arrive_ns: Ints, wire_ns: Ints) -> Ints:
    """Return when each push is received, ns, [rank, piece]; alone it takes `wire_ns`, [piece].

    Without shared links each worker has a link, on which one push follows the other, by arrival.
    """
    if scenario.shared_links:
        alone_ns = np.broadcast_to(wire_ns, arrive_ns.shape).ravel()
        received_ns = _send_on_shared_link(arrive_ns.ravel(), alone_ns, scenario.incast)
        return received_ns.reshape(arrive_ns.shape)
    received_ns = np.empty_like(arrive_ns)
    for rank in range(len(arrive_ns)):
        _, end_ns, _ = _serve_in_order(arrive_ns[[rank]], wire_ns, np.int64(ORIGIN_NS))
        received_ns[rank] = end_ns[0]
    return received_ns


def _serve_in_order(arrive_ns: Ints, work_ns: Ints, free_ns: np.int64) -> tuple[Ints, Ints, Ints]:
    """Serve in order of arrival, one at a time; return begin, end, queue depth, [rank, piece].

    `arrive_ns` is [rank, piece], the service time `work_ns` [piece]; nothing is served before
    `free_ns`.
    """
    order = np.argsort(arrive_ns.ravel(), kind="stable")
    arrivals_ns = arrive_ns.ravel()[order]
    works_ns = np.broadcast_to(work_ns, arrive_ns.shape).ravel()[order]
    work_sums_ns = np.cumsum(works_ns)
    earliest_ns = np.maximum(arrivals_ns, free_ns)
    ends_ns = np.maximum.accumulate(earliest_ns - (work_sums_ns - works_ns)) + work_sums_ns
    begins_ns = ends_ns - works_ns
    arrived_count = np.searchsorted(arrivals_ns, begins_ns, side="right")
    result = np.empty((3, len(order)), np.int64)
    result[:, order] = begins_ns, ends_ns, arrived_count - np.arange(len(order)) - 1
    begin_ns, end_ns, queue_depth = result.reshape(3, *arrive_ns.shape)
    return begin_ns, end_ns, queue_depth


def _make_request_ids(scenario: Scenario, *, is_pull: bool) -> Ints:
    """Return the ids of all pushes, or of all pulls (`is_pull`), [step, rank, piece]."""
    steps = np.arange(scenario.steps)[:, None, None]
    ranks = np.arange(scenario.ranks)[None, :, None]
    piece_count = len(scenario.pieces)
    numbers = (2 * steps + is_pull) * piece_count + np.arange(piece_count) + 1
    ids_per_rank = request_id(worker=1, counter=0)  # the upper bits of an id are its rank
    return np.asarray(numbers + ranks * ids_per_rank)


def _make_shard_columns(scenario: Scenario, shard: int) -> dict[str, Any]:
    """Return the columns that all spans of a shard share."""
    return {
        "process": scenario.ranks + shard,
        "rank": shard,
        "role": "ps",
        "shard": shard,
        "kind": "ps",
    }
