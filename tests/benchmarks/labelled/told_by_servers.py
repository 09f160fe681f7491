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
    cells = Place(np.arange(steps)[:, None], np.arange(ranks))
    _workers(ledger, cells, played)
    for shard in range(SHARDS):
        _requests(ledger, cells, work, played, shard)
    tracks = tuple(f"shard {shard}" for shard in range(SHARDS))
    workers = [Member("worker", rank, rank // setting.per_host, tracks) for rank in range(ranks)]
    shards = [Member("ps", shard, setting.hosts + shard, ("incoming",)) for shard in range(SHARDS)]
    return Recording(ledger.frame(), (*workers, *shards), tuple(clocks))


def _workers(ledger: Ledger, place: Place, played: Served) -> None:
    columns = place.of()
    pushed, pulled = played.at["pushed"].max(axis=2), played.at["pulled"].max(axis=2)
    for kind, start, end in (
        (What("step", "step", depth=0), played.start, played.end),
        (What("data", "next_batch"), played.start, played.data_end),
        (What("forward", "forward"), played.data_end, played.forward_end),
        (What("backprop", "backprop"), played.forward_end, played.backprop_end),
        (What("wait", "wait_push"), played.backprop_end, pushed),
        (What("wait", "wait_pull"), pushed, pulled),
    ):
        ledger.note(kind, start, end, columns)


def _requests(ledger: Ledger, cells: Place, work: Servers, played: Served, shard: int) -> None:
    """Note one shard's requests, on the worker that asks and on the shard."""
    times = {name: values[..., shard] for name, values in played.at.items()}
    nbytes = round(STEP_BYTES * work.share[shard])
    push, pull = _numbers(cells, shard, 0), _numbers(cells, shard, 1)
    pushed = times["pushed"].max(axis=1, keepdims=True) * 0 + played.at["pushed"].max(axis=2)
    asking = cells.of() | {"peer": shard, "bytes": nbytes}
    ledger.note(_worker(shard, "push"), times["push"], times["pushed"], asking, request=push)
    ledger.note(_worker(shard, "pull"), pushed, times["pulled"], asking, request=pull)
    served = {
        "process": np.array(len(cells.rank) + shard),
        "rank": np.array(shard),
        "step": cells.step,
        "peer": cells.rank,
    }
    columns = served | {"bytes": nbytes}
    ledger.note(
        _shard(shard, "receive", 1), times["arrive"], times["received"], columns, request=push
    )
    ledger.note(
        _shard(shard, "aggregate"),
        times["serve"],
        times["served"],
        columns,
        request=push,
        queue_depth=played.depth[..., shard],
    )
    asked = served | {"bytes": 0}
    ledger.note(_shard(shard, "receive", 1), times["asked"], times["asked"], asked, request=pull)
    ledger.note(_shard(shard, "reply"), times["reply"], times["replied"], columns, request=pull)
    done = times["served"].max(axis=1, keepdims=True)
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
