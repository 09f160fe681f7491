"""Tells a played training as the events that its processes would have recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from benchmarks.labelled.ledger import WORLD, Ledger, What
from benchmarks.labelled.recording import Member, Recording
from benchmarks.labelled.training import ns

if TYPE_CHECKING:
    from benchmarks.labelled.clocks import HostClock
    from benchmarks.labelled.setting import Setting, Times
    from benchmarks.labelled.training import Played
    from benchmarks.labelled.work import Work

FLYING: Final = 1


def tell(setting: Setting, work: Work, played: Played, clocks: list[HostClock]) -> Recording:
    """Return the recording of an allreduce training."""
    ledger = Ledger()
    steps, ranks = played.start.shape
    cells = Place(np.arange(steps)[:, None], np.arange(ranks))
    own_work(ledger, cells, work, played)
    _updates(ledger, cells, work, played)
    _reductions(ledger, cells, work, played)
    tracks = ("reductions",) if work.hop is None else ("reductions", "sends")
    members = [Member("worker", rank, rank // setting.per_host, tracks) for rank in range(ranks)]
    return Recording(ledger.frame(), tuple(members), tuple(clocks), (tuple(range(ranks)),))


class Place:
    """The steps and ranks of the spans to note."""

    def __init__(self, step: Times, rank: Times) -> None:
        self.step, self.rank = step, rank

    def of(self) -> dict[str, Times]:
        """Return them as columns; a worker's process has its rank's number."""
        return {"process": self.rank, "rank": self.rank, "step": self.step}

    def picked(self, where: Times) -> dict[str, Times]:
        """Return the columns of some cells only."""
        rows, columns = np.nonzero(where)
        return {
            "process": self.rank[columns],
            "rank": self.rank[columns],
            "step": self.step[rows, 0],
        }


def own_work(ledger: Ledger, cells: Place, work: Work, played: Played) -> None:
    """Note steps and what each rank does by itself before it meets others."""
    columns = cells.of()
    ledger.note(What("step", "step", depth=0), played.start, played.end, columns)
    ledger.note(What("data", "next_batch"), played.data_start, played.data_end, columns)
    ledger.note(What("forward", "forward"), played.data_end, played.forward_end, columns)
    ledger.note(What("backprop", "backprop"), played.forward_end, played.backprop_end, columns)
    _only(ledger, cells, What("gc", "gc", depth=2), played.gc_start, ns(work.gc))


def _only(ledger: Ledger, place: Place, what: What, start: Times, lasting: Times) -> None:
    if lasting.any():
        begin = start[lasting > 0]
        ledger.note(what, begin, begin + lasting[lasting > 0], place.picked(lasting))


def _updates(ledger: Ledger, place: Place, work: Work, played: Played) -> None:
    for layer in range(work.layers):
        name = f"update.{layer}" if work.layers > 1 else "update"
        begin, end = played.updates[..., layer, 0], played.updates[..., layer, 1]
        ledger.note(What("update", name), begin, end, place.of())
    checkpoint = What("checkpoint", "checkpoint")
    _only(ledger, place, checkpoint, played.checkpoint, ns(work.checkpoint))


def _reductions(ledger: Ledger, cells: Place, work: Work, played: Played) -> None:
    """Note each bucket's allreduce: beside backprop, or on the training thread."""
    thread, depth = (FLYING, 0) if work.overlap else (0, 1)
    span_kind = What(
        "reduction", "allreduce", "allreduce", thread=thread, depth=depth, communicator=WORLD
    )
    buckets = played.enter.shape[2]
    for bucket in range(buckets):
        enter, leave = played.enter[..., bucket], played.leave[..., bucket]
        numbers = {
            "seq": cells.step * buckets + bucket,
            "bucket": bucket,
            "bytes": work.sizes[bucket] if work.sizes else work.bucket_bytes,
        }
        ledger.note(span_kind, enter, leave, cells.of() | numbers)
        if work.hop is not None:
            _hop(ledger, cells, work, played, bucket)
    if work.overlap:
        ledger.note(
            What("wait", "wait_reductions"), played.backprop_end, played.reduced, cells.of()
        )


def _hop(ledger: Ledger, cells: Place, work: Work, played: Played, bucket: int) -> None:
    """Note each rank's send to its neighbour in the ring, within the reduction."""
    assert work.hop is not None
    span_kind = What("reduction", "send", "send", thread=FLYING + 1, depth=0)
    begin_ns = played.enter[..., bucket].max(axis=1, keepdims=True)
    lasting = ns(work.hop / played.enter.shape[2])
    neighbour = (cells.rank + 1) % len(cells.rank)
    ledger.note(
        span_kind,
        np.broadcast_to(begin_ns, lasting.shape),
        begin_ns + lasting,
        cells.of(),
        peer=neighbour,
        bytes=work.bucket_bytes,
    )
