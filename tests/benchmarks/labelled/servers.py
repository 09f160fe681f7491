"""Plays a synchronous training with parameter servers, request by request.

A worker pushes its gradients to all shards at once. Requests on a shard's wire share it; each takes its
turn on the shard's processor in the order in which it came through. When all have pushed, the shard
applies the sum and answers pulls one after the other, or `at_once`, sharing the wire. With `collapse`,
the wire gets less done the more requests come in on it (incast).
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np
from benchmarks.labelled.noise import vary
from benchmarks.labelled.training import ORIGIN_NS, ns

if TYPE_CHECKING:
    from benchmarks.labelled.setting import Floats, Setting, Times

SHARDS: Final = 4
MEANS_MS: Final = {"data": 5.0, "forward": 25.0, "backprop": 55.0}
WIRE_MS: Final = (
    6.0  # that all workers' requests of one step and direction keep a shard's wire busy
)
CPU_MS: Final = 2.0  # its processor
APPLY_MS: Final = 0.5
LATENCY_NS: Final = 25_000
STEP_BYTES: Final = 64 << 20  # of one worker, over all shards
_OPS: Final = (
    "push",
    "arrive",
    "received",
    "serve",
    "served",
    "pushed",
    "asked",
    "reply",
    "replied",
    "pulled",
)


@dataclass
class Servers:
    """Own work of workers, what a request costs each shard, and applying the sum: milliseconds."""

    phases: dict[str, Floats]
    wire: Floats
    cpu: Floats
    apply: Floats
    share: Floats
    collapse: float = 0.0
    at_once: bool = False

    def copied(self) -> Servers:
        """Return a copy that can be changed alone."""
        return deepcopy(self)

    def place(self, share: Floats) -> None:
        """Give each shard its share of the bytes."""
        self.wire = self.wire * share / self.share
        self.cpu = self.cpu * share / self.share
        self.apply = self.apply * share / self.share
        self.share = share


@dataclass
class Served:
    """When everything happened, true nanoseconds: [step, rank], and by operation [step, rank, shard]."""

    start: Times
    data_end: Times
    forward_end: Times
    backprop_end: Times
    end: Times
    at: dict[str, Times]
    depth: Times

    @property
    def job_ns(self) -> int:
        """From the first step's begin to the last one's end."""
        return int(self.end.max() - self.start.min())


def draw(setting: Setting) -> Servers:
    """Draw a healthy run."""
    even = np.full(SHARDS, 1 / SHARDS)
    return Servers(
        phases=vary(setting, MEANS_MS),
        wire=np.full(SHARDS, WIRE_MS / setting.ranks),
        cpu=np.full(SHARDS, CPU_MS / setting.ranks),
        apply=np.full(SHARDS, APPLY_MS),
        share=even,
    )


def play(work: Servers) -> Served:
    """Run it."""
    phases_ns = {name: ns(values) for name, values in work.phases.items()}
    steps, ranks = phases_ns["data"].shape
    start, data_end, forward_end, backprop_end, end = np.zeros((5, steps, ranks), np.int64)
    at = {name: np.zeros((steps, ranks, SHARDS), np.int64) for name in _OPS}
    out = Served(start, data_end, forward_end, backprop_end, end, at, np.zeros_like(at["push"]))
    now_ns = np.full(ranks, ORIGIN_NS)
    for step in range(steps):
        out.start[step] = now_ns
        out.data_end[step] = now_ns + phases_ns["data"][step]
        out.forward_end[step] = out.data_end[step] + phases_ns["forward"][step]
        out.backprop_end[step] = out.forward_end[step] + phases_ns["backprop"][step]
        _exchange(work, out, step)
        now_ns = out.at["pulled"][step].max(axis=1)
        out.end[step] = now_ns
    return out


def _exchange(work: Servers, out: Served, step: int) -> None:
    ready = out.backprop_end[step]
    times = {name: values[step] for name, values in out.at.items()}
    for shard in range(SHARDS):
        wire, cpu = work.wire[shard] * 1e6, work.cpu[shard] * 1e6
        times["push"][:, shard] = ready
        times["arrive"][:, shard] = ready + LATENCY_NS
        received = _share_wire(ready + LATENCY_NS, wire, work.collapse)
        begin_ns, done, depth = _in_turn(received, round(cpu))
        times["received"][:, shard], times["serve"][:, shard], times["served"][:, shard] = (
            received,
            begin_ns,
            done,
        )
        times["pushed"][:, shard] = done + LATENCY_NS
        out.depth[step, :, shard] = depth
    asking = times["pushed"].max(axis=1)
    for shard in range(SHARDS):
        applied = times["served"][:, shard].max() + round(work.apply[shard] * 1e6)
        requested = asking + LATENCY_NS
        if work.at_once:
            reply = np.maximum(requested, applied)
            replied = _share_wire(reply, work.wire[shard] * 1e6, 0.0)
        else:
            reply, replied, _ = _in_turn(requested, round(work.wire[shard] * 1e6), applied)
        times["asked"][:, shard] = requested
        times["reply"][:, shard], times["replied"][:, shard] = reply, replied
        times["pulled"][:, shard] = replied + LATENCY_NS


def _share_wire(arrive: Times, alone: float, collapse: float) -> Times:
    """Share a wire evenly among the requests on it: when each is through.

    All are equally large, so the first to come is the first through; `alone` is what one takes.
    """
    order = np.argsort(arrive, kind="stable")
    times = arrive[order].astype(float).tolist()
    speeds = _speeds(len(times), collapse)
    through: list[float] = []
    targets: list[float] = []
    work, now_ns, first_request = 0.0, times[0], 0
    for upcoming, time in enumerate(times):
        while first_request < upcoming:
            speed = speeds[upcoming - first_request]
            done = now_ns + (targets[first_request] - work) / speed
            if time <= done:
                work += (time - now_ns) * speed
                break
            through.append(done)
            work, now_ns, first_request = targets[first_request], done, first_request + 1
        now_ns = time
        targets.append(work + alone)
    for left, target in enumerate(targets[first_request:]):
        now_ns += (target - work) / speeds[len(times) - first_request - left]
        work = target
        through.append(now_ns)
    result = np.empty(len(times), np.int64)
    result[order] = np.rint(through).astype(np.int64)
    return result


@cache
def _speeds(most: int, collapse: float) -> list[float]:
    """Return how fast each request gets on, by how many are on the wire."""
    return [0.0, *(1 / (on * (1 + collapse * (on - 1) / most)) for on in range(1, most + 1))]


def _in_turn(arrive: Times, service: int, opens: int = 0) -> tuple[Times, Times, Times]:
    """Serve one after the other in order of arrival: begin, end, and how many stood in line before.

    Nobody is served before it `opens`.
    """
    order = np.argsort(arrive, kind="stable")
    index = np.arange(len(arrive))
    able = np.maximum(arrive[order], opens)
    end = np.maximum.accumulate(able - index * service) + (index + 1) * service
    ahead = index - np.searchsorted(end, able, side="right")
    out = np.empty((3, len(arrive)), np.int64)
    out[:, order] = end - service, end, np.maximum(ahead, 0)
    return out[0], out[1], out[2]
