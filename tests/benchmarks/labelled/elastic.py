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
    own_ns = {name: ns(values) for name, values in work.phases.items()}
    steps, ranks = own_ns["data"].shape
    times = {name: np.zeros((steps, ranks), np.int64) for name in _TIMES}
    known_versions, versions = np.zeros((2, steps, ranks), np.int64)
    asking = [(ORIGIN_NS, rank, 0) for rank in range(ranks)]
    free, version = 0, 0
    while asking:
        now_ns, rank, step = heapq.heappop(asking)
        cell = (step, rank)
        times["start"][cell] = now_ns
        arrived = now_ns + TRANSFER_NS
        begin_ns = max(arrived, free)
        times["arrived"][cell], times["sent"][cell] = arrived, begin_ns + TRANSFER_NS
        known_versions[cell] = versions[step - 1, rank] if step else 0
        versions[cell] = version
        free = begin_ns + TRANSFER_NS + SERVICE_NS
        version += 1
        times["served"][cell] = free
        times["data_end"][cell] = now_ns + own_ns["data"][cell]
        times["forward_end"][cell] = times["data_end"][cell] + own_ns["forward"][cell]
        times["backprop_end"][cell] = times["forward_end"][cell] + own_ns["backprop"][cell]
        times["done"][cell] = max(times["backprop_end"][cell], times["sent"][cell] + TRANSFER_NS)
        times["end"][cell] = times["done"][cell] + own_ns["update"][cell]
        if step + 1 < steps:
            heapq.heappush(asking, (int(times["end"][cell]), rank, step + 1))
    return Averaged(times, known_versions, versions)


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


def _workers(ledger: Ledger, cells: Place, played: Averaged) -> None:
    times, where = played.at, cells.of()
    for kind, start, end in (
        (What("step", "step", depth=0), times["start"], times["end"]),
        (What("data", "load batch"), times["start"], times["data_end"]),
        (What("forward", "forward"), times["data_end"], times["forward_end"]),
        (What("backprop", "backprop"), times["forward_end"], times["backprop_end"]),
        (What("wait", "wait for the master"), times["backprop_end"], times["done"]),
    ):
        ledger.note(kind, start, end, where)
    update = What("elastic", "update own weights", "worker_update")
    ledger.note(update, times["done"], times["end"], where, seq=played.got)
    up, down = _requests(cells)
    exchange = where | {"peer": 0, "bytes": NBYTES}
    going = What("elastic", "weights up", "weights_up", thread=1, depth=0)
    ledger.note(going, times["start"], times["arrived"], exchange, request=up, seq=played.known)
    coming = What("elastic", "weights down", "weights_down", thread=2, depth=0)
    ledger.note(coming, times["start"], times["sent"] + TRANSFER_NS, exchange, request=down)


def _master(ledger: Ledger, place: Place, played: Averaged) -> None:
    times, (up, down) = played.at, _requests(place)
    ranks = len(place.rank)
    columns = {
        "process": np.array(ranks),
        "rank": np.array(0),
        "step": place.step,
        "peer": place.rank,
    }
    columns["bytes"] = np.array(NBYTES)
    receive = What("elastic", "receive weights", "weights_up", role="ps", shard=0)
    ledger.note(receive, times["arrived"] - TRANSFER_NS, times["arrived"], columns, request=up)
    send = What("elastic", "send centre", "weights_down", role="ps", shard=0)
    ledger.note(
        send, times["sent"] - TRANSFER_NS, times["sent"], columns, request=down, seq=played.got
    )
    update = What("elastic", "update centre", "master_update", role="ps", shard=0)
    ledger.note(update, times["sent"], times["served"], columns, request=up, seq=played.got + 1)


def _requests(place: Place) -> tuple[Times, Times]:
    counter = 1 + 2 * place.step
    up = (place.rank << 40) | counter
    return np.asarray(up), np.asarray(up + 1)
