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
from tracelens.simulator.allreduce import at, draw_compute_times, record_compute, record_step
from tracelens.simulator.scenario import MILLISECOND, ORIGIN_NS

if TYPE_CHECKING:
    from tracelens.arrays import Floats, Ints
    from tracelens.simulator.scenario import Scenario
    from tracelens.simulator.sheet import Sheet

_WORKER_TIMES: Final = ("push", "push_end", "pull", "pull_end")
_SHARD_TIMES: Final = ("arrive", "received", "serve", "served", "asked", "reply", "replied")


def _through_shared_link(arrive: Ints, alone: Ints, incast: float) -> Ints:
    """Return when each message is through; those that come at once and take as long are played as one.

    Args:
        arrive: When each comes.
        alone: What each takes if it has the link for itself.
        incast: n messages together get 1 / (1 + `incast` (n - 1)) of the link's work done.
    """
    alike, which = np.unique(np.stack([arrive, alone]), axis=1, return_inverse=True)
    many = np.bincount(which).tolist()
    times, works = alike.astype(float).tolist()
    through = np.zeros(len(times))
    on_it: list[tuple[float, int]] = []  # by how much work each message has had when it is through
    had, now, upcoming, count = 0.0, 0.0, 0, 0
    while on_it or upcoming < len(times):
        pace = 1 / (count * (1 + incast * (count - 1))) if count else 0.0
        done = now + (on_it[0][0] - had) / pace if count else np.inf
        if upcoming < len(times) and times[upcoming] <= done:
            had, now = had + (times[upcoming] - now) * pace, times[upcoming]
            heappush(on_it, (had + works[upcoming], upcoming))
            count += many[upcoming]
            upcoming += 1
        else:
            had, messages = heappop(on_it)
            now = through[messages] = done
            count -= many[messages]
    return np.rint(through).astype(np.int64)[which]


def simulate(scenario: Scenario, sheet: Sheet) -> None:
    """Add the events of workers and shards of a whole run to `sheet`, in true time."""
    own, service = draw_compute_times(scenario), durations.services(scenario)
    wires = durations.wires(scenario)
    shape = (scenario.steps, scenario.ranks)
    start, end = (np.zeros(shape, np.int64) for _ in range(2))
    pieces = scenario.pieces
    names = (*_WORKER_TIMES, *_SHARD_TIMES, "depth")
    requests = {name: np.zeros((*shape, len(pieces)), np.int64) for name in names}
    now = np.full(scenario.ranks, ORIGIN_NS, np.int64)
    free = np.full(scenario.shards, ORIGIN_NS, np.int64)
    for step in range(scenario.steps):
        start[step] = now
        ready = now + own.data[step] + own.forward[step] + own.gc[step] + own.backprop[step]
        times = {name: array[step] for name, array in requests.items()}
        now = _exchange(scenario, ready, (service[step], wires[step]), free, times)
        end[step] = now
    record_compute(scenario, sheet, own, start, None)
    record_step(scenario, sheet, start, end)
    _record_workers(scenario, sheet, requests)
    _record_shards(scenario, sheet, requests)


def _exchange(
    scenario: Scenario,
    ready: Ints,
    takes: tuple[Ints, Floats],
    free: Ints,
    out: dict[str, Ints],
) -> Ints:
    """Push and pull once with every shard; fills `out` and returns when each worker goes on.

    `takes` are each shard's time to aggregate all that it holds, and its link's ns per byte. `free` says
    from when on each shard can serve; it is moved on.
    """
    latency, each = round(scenario.latency_us * 1_000), scenario.message_ms * MILLISECOND
    service, per_byte = takes
    held = [(shard, *scenario.pieces_of(shard)) for shard in used(scenario)]
    for shard, columns, sizes in held:
        wire = np.rint(each + sizes * per_byte[shard]).astype(np.int64)
        arrive = np.repeat((ready + latency)[:, None], len(sizes), axis=1)
        through = received(scenario, arrive, wire)
        work = np.rint(service[shard] * sizes / max(int(sizes.sum()), 1)).astype(np.int64)
        serve, served, depth = queue(through, work, free[shard])
        out["push"][:, columns], out["arrive"][:, columns] = ready[:, None], arrive
        out["received"][:, columns], out["depth"][:, columns] = through, depth
        out["serve"][:, columns], out["served"][:, columns] = serve, served
        out["push_end"][:, columns] = served + latency
    pull = out["push_end"].max(axis=1)
    for shard, columns, sizes in held:
        wire = np.rint(each + sizes * per_byte[shard]).astype(np.int64)
        applied = out["served"][:, columns].max() + round(scenario.apply_ms * MILLISECOND)
        asked = np.repeat((pull + latency)[:, None], len(sizes), axis=1)
        reply, replied, _ = queue(asked, wire, applied)
        free[shard] = replied.max()
        out["pull"][:, columns], out["asked"][:, columns] = pull[:, None], asked
        out["reply"][:, columns], out["replied"][:, columns] = reply, replied
        out["pull_end"][:, columns] = replied + latency
    return np.asarray(out["pull_end"].max(axis=1))


def used(scenario: Scenario) -> list[int]:
    """Return the shards that hold something."""
    return sorted({piece.shard for piece in scenario.pieces})


def received(scenario: Scenario, arrive: Ints, wire: Ints) -> Ints:
    """Return when each push, [rank, piece], is in; `wire` is what it takes alone.

    Without shared links each worker's pushes take turns in order of arrival.
    """
    if not scenario.shared_links:
        free = np.int64(ORIGIN_NS)
        return np.stack([queue(row[None], wire, free)[1][0] for row in arrive])
    work = np.broadcast_to(wire, arrive.shape)
    return _through_shared_link(arrive.ravel(), work.ravel(), scenario.incast).reshape(arrive.shape)


def queue(arrive: Ints, work: Ints, free: np.int64) -> tuple[Ints, Ints, Ints]:
    """Serve in order of arrival, one at a time: start, end, and how many wait at the start.

    `arrive` is [rank, piece], `work` what each piece takes. Nothing is served before `free`.
    """
    flat = arrive.ravel()
    order = np.argsort(flat, kind="stable")
    lasting = np.broadcast_to(work, arrive.shape).ravel()[order]
    done = np.cumsum(lasting)
    able = np.maximum(flat[order], free)
    ends = np.maximum.accumulate(able - (done - lasting)) + done
    starts = ends - lasting
    behind = np.searchsorted(flat[order], starts, side="right") - np.arange(len(flat)) - 1
    result = np.empty((3, len(flat)), np.int64)
    result[:, order] = starts, ends, behind
    begin, end, depth = result.reshape(3, *arrive.shape)
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
        begin, end = times[op], times[f"{op}_end"]
        waited = f"wait_{op}"
        sheet.spans(begin[..., 0], end.max(axis=-1), name=waited, kind="wait", **at(scenario))
        for row, piece in enumerate(scenario.pieces):
            columns = at(scenario) | {
                "thread": 1 + piece.shard,
                "depth": 0,
                "shard": piece.shard,
                "peer": piece.shard,
                "key": piece.variable if scenario.variables else None,
                "bytes": piece.nbytes,
                "request": ids[..., row],
            }
            sheet.spans(begin[..., row], end[..., row], name=op, kind="ps", op=op, **columns)


def _record_shards(scenario: Scenario, sheet: Sheet, times: dict[str, Ints]) -> None:
    pushes, pulls = request_ids(scenario, pull=False), request_ids(scenario, pull=True)
    for row, piece in enumerate(scenario.pieces):
        part = {name: array[..., row] for name, array in times.items()}
        both = on_shard(scenario, piece.shard) | {"bytes": piece.nbytes}
        if scenario.variables:
            both |= {"key": piece.variable}
        push = both | {"request": pushes[..., row]}
        pull = both | {"request": pulls[..., row]}
        network = {"thread": 1, "op": "receive", "name": "receive"}
        sheet.spans(part["arrive"], part["received"], **(push | network))
        sheet.spans(part["asked"], part["asked"], **(pull | network | {"bytes": 0}))
        queued = {"queue_depth": part["depth"], "op": "aggregate", "name": "aggregate"}
        sheet.spans(part["serve"], part["served"], **(push | queued))
        sheet.spans(part["reply"], part["replied"], **(pull | {"op": "reply", "name": "reply"}))
    for shard in used(scenario):
        begin = times["served"][..., scenario.pieces_of(shard)[0]].max(axis=(1, 2))
        end = begin + round(scenario.apply_ms * MILLISECOND)
        apply = on_shard(scenario, shard) | {"step": np.arange(scenario.steps), "peer": None}
        sheet.spans(begin, end, **(apply | {"op": "apply", "name": "apply"}))


def on_shard(scenario: Scenario, shard: int) -> dict[str, Any]:
    """Return where a shard's spans stand."""
    return {
        "process": scenario.ranks + shard,
        "rank": shard,
        "role": "ps",
        "shard": shard,
        "kind": "ps",
        "step": np.arange(scenario.steps)[:, None],
        "peer": np.arange(scenario.ranks),
    }
