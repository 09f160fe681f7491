"""Simulates synchronous training with parameter servers: shards with a first-in-first-out queue.

Each step a worker pushes its gradient's part (or, of `variables`, each one's gradient) to every
shard at once and then pulls the new weights. What pushes share of a shard's link is up to the
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
    from tracelens.arrays import Floats, Ints
    from tracelens.simulator.scenario import Scenario
    from tracelens.simulator.sheet import Sheet

_WORKER_TIMES: Final = ("push", "push_end", "pull", "pull_end")
_SHARD_TIMES: Final = ("arrive", "received", "serve", "served", "asked", "reply", "replied")


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
    waiting: list[
        tuple[float, int]
    ] = []  # by how much work each message has had when it is through
    done_work_ns, now_ns, next_group, count = 0.0, 0.0, 0, 0
    while waiting or next_group < len(times_ns):
        pace = 1 / (count * (1 + incast * (count - 1))) if count else 0.0
        done_ns = now_ns + (waiting[0][0] - done_work_ns) / pace if count else np.inf
        if next_group < len(times_ns) and times_ns[next_group] <= done_ns:
            done_work_ns, now_ns = (
                done_work_ns + (times_ns[next_group] - now_ns) * pace,
                times_ns[next_group],
            )
            heappush(waiting, (done_work_ns + works_ns[next_group], next_group))
            count += message_counts[next_group]
            next_group += 1
        else:
            done_work_ns, messages = heappop(waiting)
            now_ns = through_ns[messages] = done_ns
            count -= message_counts[messages]
    return np.rint(through_ns).astype(np.int64)[group_of_message]


def simulate(scenario: Scenario, sheet: Sheet) -> None:
    """Add the events of workers and shards of a whole run to `sheet`, in true time."""
    compute_times, service_ns = draw_compute_times(scenario), durations.services(scenario)
    ns_per_byte = durations.wires(scenario)
    shape = (scenario.steps, scenario.ranks)
    start_ns, end_ns = (np.zeros(shape, np.int64) for _ in range(2))
    pieces = scenario.pieces
    names = (*_WORKER_TIMES, *_SHARD_TIMES, "depth")
    requests = {name: np.zeros((*shape, len(pieces)), np.int64) for name in names}
    now_ns = np.full(scenario.ranks, ORIGIN_NS, np.int64)
    free_ns = np.full(scenario.shards, ORIGIN_NS, np.int64)
    for step in range(scenario.steps):
        start_ns[step] = now_ns
        ready_ns = (
            now_ns
            + compute_times.data[step]
            + compute_times.forward[step]
            + compute_times.gc[step]
            + compute_times.backprop[step]
        )
        times = {name: array[step] for name, array in requests.items()}
        now_ns = _exchange(
            scenario, ready_ns, (service_ns[step], ns_per_byte[step]), free_ns, times
        )
        end_ns[step] = now_ns
    record_compute(scenario, sheet, compute_times, start_ns, None)
    record_step(scenario, sheet, start_ns, end_ns)
    _record_workers(scenario, sheet, requests)
    _record_shards(scenario, sheet, requests)


def _exchange(
    scenario: Scenario,
    ready_ns: Ints,
    shard_costs: tuple[Ints, Floats],
    free_ns: Ints,
    times: dict[str, Ints],
) -> Ints:
    """Push and pull once with every shard; fill `times` and return when each worker goes on, ns, [rank].

    `shard_costs` are each shard's time to aggregate all that it holds, ns, and its link's ns per byte.
    `free_ns`, [shard], is the time from which each shard can serve; it is moved on.
    """
    latency_ns, message_ns = round(scenario.latency_us * 1_000), scenario.message_ms * MILLISECOND
    service_ns, ns_per_byte = shard_costs
    pieces_by_shard = [(shard, *scenario.pieces_of(shard)) for shard in used_shards(scenario)]
    for shard, columns, sizes in pieces_by_shard:
        wire_ns = np.rint(message_ns + sizes * ns_per_byte[shard]).astype(np.int64)
        arrive_ns = np.repeat((ready_ns + latency_ns)[:, None], len(sizes), axis=1)
        received_ns = received(scenario, arrive_ns, wire_ns)
        work_ns = np.rint(service_ns[shard] * sizes / max(int(sizes.sum()), 1)).astype(np.int64)
        serve_ns, served_ns, depth = queue(received_ns, work_ns, free_ns[shard])
        times["push"][:, columns], times["arrive"][:, columns] = ready_ns[:, None], arrive_ns
        times["received"][:, columns], times["depth"][:, columns] = received_ns, depth
        times["serve"][:, columns], times["served"][:, columns] = serve_ns, served_ns
        times["push_end"][:, columns] = served_ns + latency_ns
    pull_ns = times["push_end"].max(axis=1)
    for shard, columns, sizes in pieces_by_shard:
        wire_ns = np.rint(message_ns + sizes * ns_per_byte[shard]).astype(np.int64)
        applied_ns = times["served"][:, columns].max() + round(scenario.apply_ms * MILLISECOND)
        asked_ns = np.repeat((pull_ns + latency_ns)[:, None], len(sizes), axis=1)
        reply_ns, replied_ns, _ = queue(asked_ns, wire_ns, applied_ns)
        free_ns[shard] = replied_ns.max()
        times["pull"][:, columns], times["asked"][:, columns] = pull_ns[:, None], asked_ns
        times["reply"][:, columns], times["replied"][:, columns] = reply_ns, replied_ns
        times["pull_end"][:, columns] = replied_ns + latency_ns
    return np.asarray(times["pull_end"].max(axis=1))


def used_shards(scenario: Scenario) -> list[int]:
    """Return the shards that hold something."""
    return sorted({piece.shard for piece in scenario.pieces})


def received(scenario: Scenario, arrive_ns: Ints, wire_ns: Ints) -> Ints:
    """Return when each push, [rank, piece], is in; `wire_ns` is what it takes alone.

    Without shared links each worker's pushes take turns in order of arrival.
    """
    if not scenario.shared_links:
        free_ns = np.int64(ORIGIN_NS)
        return np.stack([queue(row[None], wire_ns, free_ns)[1][0] for row in arrive_ns])
    work_ns = np.broadcast_to(wire_ns, arrive_ns.shape)
    return _through_shared_link(arrive_ns.ravel(), work_ns.ravel(), scenario.incast).reshape(
        arrive_ns.shape
    )


def queue(arrive_ns: Ints, work_ns: Ints, free_ns: np.int64) -> tuple[Ints, Ints, Ints]:
    """Serve in order of arrival, one at a time: start, end, and how many wait at the start.

    `arrive_ns` is [rank, piece], `work_ns` what each piece takes. Nothing is served before `free_ns`.
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


def request_ids(scenario: Scenario, *, pull: bool) -> Ints:
    """Return the request ids, [step, rank, shard]."""
    steps = np.arange(scenario.steps)[:, None, None]
    ranks = np.arange(scenario.ranks)[None, :, None]
    pieces = len(scenario.pieces)
    counter = (2 * steps + pull) * pieces + np.arange(pieces) + 1
    return np.asarray(counter + ranks * request_id(1, 0))


def _record_workers(scenario: Scenario, sheet: Sheet, times: dict[str, Ints]) -> None:
    for op, ids in (
        ("push", request_ids(scenario, pull=False)),
        ("pull", request_ids(scenario, pull=True)),
    ):
        begin_ns, end_ns = times[op], times[f"{op}_end"]
        wait_name = f"wait_{op}"
        sheet.spans(
            begin_ns[..., 0],
            end_ns.max(axis=-1),
            name=wait_name,
            kind="wait",
            **span_columns(scenario),
        )
        for row, piece in enumerate(scenario.pieces):
            columns = span_columns(scenario) | {
                "thread": 1 + piece.shard,
                "depth": 0,
                "shard": piece.shard,
                "peer": piece.shard,
                "key": piece.variable if scenario.variables else None,
                "bytes": piece.nbytes,
                "request": ids[..., row],
            }
            sheet.spans(begin_ns[..., row], end_ns[..., row], name=op, kind="ps", op=op, **columns)


def _record_shards(scenario: Scenario, sheet: Sheet, times: dict[str, Ints]) -> None:
    pushes, pulls = request_ids(scenario, pull=False), request_ids(scenario, pull=True)
    for row, piece in enumerate(scenario.pieces):
        piece_times = {name: array[..., row] for name, array in times.items()}
        columns = on_shard(scenario, piece.shard) | {"bytes": piece.nbytes}
        if scenario.variables:
            columns |= {"key": piece.variable}
        push_columns = columns | {"request": pushes[..., row]}
        pull_columns = columns | {"request": pulls[..., row]}
        receive_columns = {"thread": 1, "op": "receive", "name": "receive"}
        sheet.spans(
            piece_times["arrive"], piece_times["received"], **(push_columns | receive_columns)
        )
        sheet.spans(
            piece_times["asked"],
            piece_times["asked"],
            **(pull_columns | receive_columns | {"bytes": 0}),
        )
        aggregate_columns = {
            "queue_depth": piece_times["depth"],
            "op": "aggregate",
            "name": "aggregate",
        }
        sheet.spans(
            piece_times["serve"], piece_times["served"], **(push_columns | aggregate_columns)
        )
        sheet.spans(
            piece_times["reply"],
            piece_times["replied"],
            **(pull_columns | {"op": "reply", "name": "reply"}),
        )
    for shard in used_shards(scenario):
        begin_ns = times["served"][..., scenario.pieces_of(shard)[0]].max(axis=(1, 2))
        end_ns = begin_ns + round(scenario.apply_ms * MILLISECOND)
        apply_columns = on_shard(scenario, shard) | {
            "step": np.arange(scenario.steps),
            "peer": None,
        }
        sheet.spans(begin_ns, end_ns, **(apply_columns | {"op": "apply", "name": "apply"}))


def on_shard(scenario: Scenario, shard: int) -> dict[str, Any]:
    """Return the columns that all spans of a shard share."""
    return {
        "process": scenario.ranks + shard,
        "rank": shard,
        "role": "ps",
        "shard": shard,
        "kind": "ps",
        "step": np.arange(scenario.steps)[:, None],
        "peer": np.arange(scenario.ranks),
    }
