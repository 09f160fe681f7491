"""Tells a played parameter-server training as the events of its workers and shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from benchmarks.labelled.ledger import Ledger, What
from benchmarks.labelled.recording import Member, Recording
from benchmarks.labelled.servers import SHARDS, STEP_BYTES
from benchmarks.labelled.told import Place

if TYPE_CHECKING:
    import numpy.typing as npt
    from benchmarks.labelled.clocks import HostClock
    from benchmarks.labelled.servers import Served, Servers
    from benchmarks.labelled.setting import Setting


def tell(setting: Setting, work: Servers, played: Served, clocks: list[HostClock]) -> Recording:
    """Return the recording of workers and shards."""
    ledger = Ledger()
    steps, ranks = played.start.shape
    place = Place(np.arange(steps)[:, None], np.arange(ranks))
    _workers(ledger, place, played)
    for shard in range(SHARDS):
        _requests(ledger, place, work, played, shard)
    tracks = tuple(f"shard {shard}" for shard in range(SHARDS))
    workers = [Member("worker", rank, rank // setting.per_host, tracks) for rank in range(ranks)]
    shards = [Member("ps", shard, setting.hosts + shard, ("incoming",)) for shard in range(SHARDS)]
    return Recording(ledger.frame(), (*workers, *shards), tuple(clocks))


def _workers(ledger: Ledger, place: Place, played: Served) -> None:
    at = place.of()
    pushed, pulled = played.at["pushed"].max(axis=2), played.at["pulled"].max(axis=2)
    for what, begin, end in (
        (What("step", "step", depth=0), played.start, played.end),
        (What("data", "next_batch"), played.start, played.data_end),
        (What("forward", "forward"), played.data_end, played.forward_end),
        (What("backprop", "backprop"), played.forward_end, played.backprop_end),
        (What("wait", "wait_push"), played.backprop_end, pushed),
        (What("wait", "wait_pull"), pushed, pulled),
    ):
        ledger.note(what, begin, end, at)


def _requests(ledger: Ledger, place: Place, work: Servers, played: Served, shard: int) -> None:
    """Note one shard's requests, on the worker that asks and on the shard."""
    at = {name: values[..., shard] for name, values in played.at.items()}
    moved = round(STEP_BYTES * work.share[shard])
    push, pull = _numbers(place, shard, 0), _numbers(place, shard, 1)
    pushed = at["pushed"].max(axis=1, keepdims=True) * 0 + played.at["pushed"].max(axis=2)
    asking = place.of() | {"peer": shard, "bytes": moved}
    ledger.note(_worker(shard, "push"), at["push"], at["pushed"], asking, request=push)
    ledger.note(_worker(shard, "pull"), pushed, at["pulled"], asking, request=pull)
    served = {
        "process": np.array(len(place.rank) + shard),
        "rank": np.array(shard),
        "step": place.step,
        "peer": place.rank,
    }
    to = served | {"bytes": moved}
    ledger.note(_shard(shard, "receive", 1), at["arrive"], at["received"], to, request=push)
    ledger.note(
        _shard(shard, "aggregate"),
        at["serve"],
        at["served"],
        to,
        request=push,
        queue_depth=played.depth[..., shard],
    )
    asked = served | {"bytes": 0}
    ledger.note(_shard(shard, "receive", 1), at["asked"], at["asked"], asked, request=pull)
    ledger.note(_shard(shard, "reply"), at["reply"], at["replied"], to, request=pull)
    done = at["served"].max(axis=1, keepdims=True)
    applied = done + round(work.apply[shard] * 1e6)
    ledger.note(_shard(shard, "apply"), done, applied, served | {"peer": -1})


def _worker(shard: int, op: str) -> What:
    return What("ps", op, op, thread=1 + shard, depth=0, shard=shard)


def _shard(shard: int, op: str, thread: int = 0) -> What:
    return What("ps", op, op, role="ps", thread=thread, depth=0, shard=shard)


def _numbers(place: Place, shard: int, pull: int) -> npt.NDArray[np.int64]:
    """Return the request ids: the worker in the upper bits, a counter in the lower 40."""
    counter = 1 + shard + SHARDS * (2 * place.step + pull)
    return np.asarray((place.rank << 40) | counter)
