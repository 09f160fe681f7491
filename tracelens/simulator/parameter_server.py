"""Simulates synchronous training with parameter servers: shards with a first-in-first-out queue.

Each step a worker pushes its gradient's part to every shard at once and then pulls the new weights.
A shard adds the pushes up in order of arrival, applies them after the last one, and then answers the
pulls in order of arrival. Requests carry ids, so both sides of each are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens.schema.record import request_id
from tracelens.simulator import durations
from tracelens.simulator.allreduce import at, draw_own, record_own, record_step
from tracelens.simulator.scenario import MILLISECOND, ORIGIN_NS

if TYPE_CHECKING:
    from tracelens.simulator.durations import Nanoseconds
    from tracelens.simulator.scenario import Scenario
    from tracelens.simulator.sheet import Sheet

_WORKER_TIMES: Final = ("push", "push_end", "pull", "pull_end")
_SHARD_TIMES: Final = ("arrive", "received", "serve", "served", "asked", "reply", "replied")


def simulate(scenario: Scenario, sheet: Sheet) -> None:
    """Add the events of workers and shards of a whole run to `sheet`, in true time."""
    own, service = draw_own(scenario), durations.services(scenario)
    shape = (scenario.steps, scenario.ranks)
    start, end = (np.zeros(shape, np.int64) for _ in range(2))
    names = (*_WORKER_TIMES, *_SHARD_TIMES, "depth")
    requests = {name: np.zeros((*shape, scenario.shards), np.int64) for name in names}
    now = np.full(scenario.ranks, ORIGIN_NS, np.int64)
    free = np.full(scenario.shards, ORIGIN_NS, np.int64)
    for step in range(scenario.steps):
        start[step] = now
        ready = now + own.data[step] + own.forward[step] + own.gc[step] + own.backprop[step]
        times = {name: array[step] for name, array in requests.items()}
        now = _exchange(scenario, ready, service[step], free, times)
        end[step] = now
    record_own(scenario, sheet, own, start, None)
    record_step(scenario, sheet, start, end)
    _record_workers(scenario, sheet, requests)
    _record_shards(scenario, sheet, requests)


def _exchange(
    scenario: Scenario,
    ready: Nanoseconds,
    service: Nanoseconds,
    free: Nanoseconds,
    out: dict[str, Nanoseconds],
) -> Nanoseconds:
    """Push and pull once with every shard; fills `out` and returns when each worker goes on.

    `free` says from when on each shard can serve; it is moved on.
    """
    latency = round(scenario.latency_us * 1_000)
    wires = [round(size / scenario.link_gbytes_per_s) for size in scenario.bytes_of_shards]
    for shard, wire in enumerate(wires):
        serve, served, depth = _queue(ready + latency + wire, service[shard], free[shard])
        out["push"][:, shard] = ready
        out["arrive"][:, shard] = ready + latency
        out["received"][:, shard] = ready + latency + wire
        out["serve"][:, shard], out["served"][:, shard] = serve, served
        out["depth"][:, shard] = depth
        out["push_end"][:, shard] = served + latency
    pull = out["push_end"].max(axis=1)
    for shard, wire in enumerate(wires):
        applied = out["served"][:, shard].max() + round(scenario.apply_ms * MILLISECOND)
        reply, replied, _ = _queue(pull + latency, np.int64(wire), applied)
        free[shard] = replied.max()
        out["pull"][:, shard], out["asked"][:, shard] = pull, pull + latency
        out["reply"][:, shard], out["replied"][:, shard] = reply, replied
        out["pull_end"][:, shard] = replied + latency
    return np.asarray(out["pull_end"].max(axis=1))


def _queue(
    arrive: Nanoseconds, service: np.int64, free: np.int64
) -> tuple[Nanoseconds, Nanoseconds, Nanoseconds]:
    """Serve in order of arrival, one at a time: start, end, and how many wait at the start.

    Nothing is served before `free`.
    """
    order = np.argsort(arrive, kind="stable")
    turn = np.arange(len(arrive))
    able = np.maximum(arrive[order], free)
    ends = np.maximum.accumulate(able - turn * service) + (turn + 1) * service
    starts = ends - service
    behind = np.searchsorted(arrive[order], starts, side="right") - turn - 1
    result = np.empty((3, len(arrive)), np.int64)
    result[:, order] = starts, ends, behind
    return result[0], result[1], result[2]


def _ids(scenario: Scenario, *, pull: bool) -> Nanoseconds:
    """Return the request ids, [step, rank, shard]."""
    steps = np.arange(scenario.steps)[:, None, None]
    ranks = np.arange(scenario.ranks)[None, :, None]
    counter = (2 * steps + pull) * scenario.shards + np.arange(scenario.shards) + 1
    return np.asarray(counter + ranks * request_id(1, 0))


def _record_workers(scenario: Scenario, sheet: Sheet, times: dict[str, Nanoseconds]) -> None:
    for op, ids in (("push", _ids(scenario, pull=False)), ("pull", _ids(scenario, pull=True))):
        begin, end = times[op], times[f"{op}_end"]
        waited = f"wait_{op}"
        sheet.spans(begin[..., 0], end.max(axis=-1), name=waited, kind="wait", **at(scenario))
        for shard, size in enumerate(scenario.bytes_of_shards):
            columns = at(scenario) | {
                "thread": 1 + shard,
                "depth": 0,
                "shard": shard,
                "peer": shard,
                "bytes": size,
                "request": ids[..., shard],
            }
            sheet.spans(begin[..., shard], end[..., shard], name=op, kind="ps", op=op, **columns)


def _record_shards(scenario: Scenario, sheet: Sheet, times: dict[str, Nanoseconds]) -> None:
    pushes, pulls = _ids(scenario, pull=False), _ids(scenario, pull=True)
    for shard, size in enumerate(scenario.bytes_of_shards):
        part = {name: array[..., shard] for name, array in times.items()}
        push = _on_shard(scenario, shard) | {"bytes": size, "request": pushes[..., shard]}
        pull = _on_shard(scenario, shard) | {"bytes": size, "request": pulls[..., shard]}
        network = {"thread": 1, "op": "receive", "name": "receive"}
        sheet.spans(part["arrive"], part["received"], **(push | network))
        sheet.spans(part["asked"], part["asked"], **(pull | network | {"bytes": 0}))
        queued = {"queue_depth": part["depth"], "op": "aggregate", "name": "aggregate"}
        sheet.spans(part["serve"], part["served"], **(push | queued))
        sheet.spans(part["reply"], part["replied"], **(pull | {"op": "reply", "name": "reply"}))
        begin = part["served"].max(axis=1)
        end = begin + round(scenario.apply_ms * MILLISECOND)
        apply = _on_shard(scenario, shard) | {"step": np.arange(scenario.steps), "peer": None}
        sheet.spans(begin, end, **(apply | {"op": "apply", "name": "apply"}))


def _on_shard(scenario: Scenario, shard: int) -> dict[str, Any]:
    return {
        "process": scenario.ranks + shard,
        "rank": shard,
        "role": "ps",
        "shard": shard,
        "kind": "ps",
        "step": np.arange(scenario.steps)[:, None],
        "peer": np.arange(scenario.ranks),
    }
