"""Plays asynchronous elastic averaging: workers exchange weights with a master, nobody waits for all.

Every few steps a worker sends its weights and receives the centre while it computes; the master serves
one after the other and counts versions of the centre. A worker that is slow only becomes stale: the
centre has moved on by many versions between its exchanges, and the others lose nothing.
"""

from __future__ import annotations

import heapq
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from benchmarks.labelled.ledger import Ledger, What
from benchmarks.labelled.noise import vary
from benchmarks.labelled.recording import Member, Recording
from benchmarks.labelled.told import Place
from benchmarks.labelled.training import ORIGIN_NS, ns

if TYPE_CHECKING:
    from benchmarks.labelled.clocks import HostClock
    from benchmarks.labelled.setting import Floats, Setting, Times

MEANS_MS: Final = {"data": 5.0, "forward": 25.0, "backprop": 55.0, "update": 10.0}
TRANSFER_NS: Final = 40_000
SERVICE_NS: Final = 20_000
NBYTES: Final = 64 << 20
_TIMES: Final = (
    "start",
    "data_end",
    "forward_end",
    "backprop_end",
    "arrived",
    "sent",
    "served",
    "done",
    "end",
)


@dataclass
class Elastic:
    """Own work of workers, milliseconds, [step, rank]."""

    phases: dict[str, Floats]

    def copied(self) -> Elastic:
        """Return a copy that can be changed alone."""
        return deepcopy(self)


@dataclass
class Averaged:
    """When everything happened, true nanoseconds, [step, rank], and the centre's versions."""

    at: dict[str, Times]
    known: Times  # the version that a worker knew when it asked
    got: Times  # the one that it was answered

    @property
    def job_ns(self) -> int:
        """From the first step's begin to the last one's end."""
        return int(self.at["end"].max() - self.at["start"].min())


def draw(setting: Setting) -> Elastic:
    """Draw a healthy run."""
    return Elastic(vary(setting, MEANS_MS))


def play(work: Elastic) -> Averaged:
    """Run it: the next worker to reach the master is served next."""
    own = {name: ns(values) for name, values in work.phases.items()}
    steps, ranks = own["data"].shape
    at = {name: np.zeros((steps, ranks), np.int64) for name in _TIMES}
    known, got = np.zeros((2, steps, ranks), np.int64)
    asking = [(ORIGIN_NS, rank, 0) for rank in range(ranks)]
    free, version = 0, 0
    while asking:
        now, rank, step = heapq.heappop(asking)
        cell = (step, rank)
        at["start"][cell] = now
        arrived = now + TRANSFER_NS
        begin = max(arrived, free)
        at["arrived"][cell], at["sent"][cell] = arrived, begin + TRANSFER_NS
        known[cell] = got[step - 1, rank] if step else 0
        got[cell] = version
        free = begin + TRANSFER_NS + SERVICE_NS
        version += 1
        at["served"][cell] = free
        at["data_end"][cell] = now + own["data"][cell]
        at["forward_end"][cell] = at["data_end"][cell] + own["forward"][cell]
        at["backprop_end"][cell] = at["forward_end"][cell] + own["backprop"][cell]
        at["done"][cell] = max(at["backprop_end"][cell], at["sent"][cell] + TRANSFER_NS)
        at["end"][cell] = at["done"][cell] + own["update"][cell]
        if step + 1 < steps:
            heapq.heappush(asking, (int(at["end"][cell]), rank, step + 1))
    return Averaged(at, known, got)


def tell(setting: Setting, played: Averaged, clocks: list[HostClock]) -> Recording:
    """Return the recording of workers and master."""
    ledger = Ledger()
    steps, ranks = played.known.shape
    place = Place(np.arange(steps)[:, None], np.arange(ranks))
    _workers(ledger, place, played)
    _master(ledger, place, played)
    tracks = ("weights up", "weights down")
    workers = [Member("worker", rank, rank // setting.per_host, tracks) for rank in range(ranks)]
    master = Member("ps", 0, setting.hosts)
    return Recording(ledger.frame(), (*workers, master), tuple(clocks))


def _workers(ledger: Ledger, place: Place, played: Averaged) -> None:
    at, where = played.at, place.of()
    for what, begin, end in (
        (What("step", "step", depth=0), at["start"], at["end"]),
        (What("data", "load batch"), at["start"], at["data_end"]),
        (What("forward", "forward"), at["data_end"], at["forward_end"]),
        (What("backprop", "backprop"), at["forward_end"], at["backprop_end"]),
        (What("wait", "wait for the master"), at["backprop_end"], at["done"]),
    ):
        ledger.note(what, begin, end, where)
    update = What("elastic", "update own weights", "worker_update")
    ledger.note(update, at["done"], at["end"], where, seq=played.got)
    up, down = _requests(place)
    exchange = where | {"peer": 0, "bytes": NBYTES}
    going = What("elastic", "weights up", "weights_up", thread=1, depth=0)
    ledger.note(going, at["start"], at["arrived"], exchange, request=up, seq=played.known)
    coming = What("elastic", "weights down", "weights_down", thread=2, depth=0)
    ledger.note(coming, at["start"], at["sent"] + TRANSFER_NS, exchange, request=down)


def _master(ledger: Ledger, place: Place, played: Averaged) -> None:
    at, (up, down) = played.at, _requests(place)
    ranks = len(place.rank)
    here = {"process": np.array(ranks), "rank": np.array(0), "step": place.step, "peer": place.rank}
    here["bytes"] = np.array(NBYTES)
    receive = What("elastic", "receive weights", "weights_up", role="ps", shard=0)
    ledger.note(receive, at["arrived"] - TRANSFER_NS, at["arrived"], here, request=up)
    send = What("elastic", "send centre", "weights_down", role="ps", shard=0)
    ledger.note(send, at["sent"] - TRANSFER_NS, at["sent"], here, request=down, seq=played.got)
    update = What("elastic", "update centre", "master_update", role="ps", shard=0)
    ledger.note(update, at["sent"], at["served"], here, request=up, seq=played.got + 1)


def _requests(place: Place) -> tuple[Times, Times]:
    counter = 1 + 2 * place.step
    up = (place.rank << 40) | counter
    return np.asarray(up), np.asarray(up + 1)
