"""Why workers are queued at servers: a shard is at work, or another worker's push is not sent yet.

What a worker waits for is known of each stretch of a queue (`accounting/server_queues.py`): a push that
is not sent yet, and from then on its shard: its processor, requests before this one. What of that time
the shard was not at work in, no span of it covers: it held the request. Only time counts that is a
worker's ``ps_queue`` (`accounting/phases.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES
from tracelens.accounting.jitter import ALONE_COLUMNS
from tracelens.accounting.server_queues import server_queues
from tracelens.accounting.service import sum_work_until
from tracelens.model import fmt
from tracelens.model.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.accounting.phases import Phases
    from tracelens.analyses.servers.exchange import Exchange
    from tracelens.arrays import Floats, Ints
    from tracelens.model.trace import Trace

__all__ = ["NO_QUEUES", "Queues", "held_requests", "measure_queues"]

# of the job: requests held for less are not reported [policy]
MIN_SAVING_TO_REPORT_HELD_REQUESTS: Final = 0.03
# steps: held requests are not judged by fewer [chosen]
MIN_STEPS_TO_JUDGE_HELD_REQUESTS: Final = 20
IS_QUEUE: Final = np.array(CATEGORIES) == "ps_queue"


@dataclass(frozen=True, eq=False)
class Queues:
    """Summed over workers, nanoseconds: for shards at work, that hold requests, for pushes not yet sent.

    A shard that is not at work holds them in code that no span covers.
    `alone` says for how long the push of each of `ranks` was the only one that was missing, by step
    (`accounting/jitter.py`).
    """

    at_work_ns: Mapping[int, float]
    held_ns: Mapping[int, float]
    missing_ns: float
    ranks: tuple[int, ...]
    alone: pl.DataFrame


NO_QUEUES: Final = Queues({}, {}, 0.0, (), pl.DataFrame(schema=ALONE_COLUMNS))


def measure_queues(
    trace: Trace, phases: Phases, asked: pl.DataFrame, served: pl.DataFrame
) -> Queues:
    """Divide the time that workers' requests are queued.

    Args:
        trace: With its shards.
        phases: Of what queueing is no worker's time, since it computed meanwhile.
        asked: The requests as workers recorded them, with their shards.
        served: What shards recorded of them.
    """
    queued = server_queues(trace)
    if queued.is_empty():
        return NO_QUEUES
    arrived = served.filter(pl.col("op").is_in(["receive", "aggregate"]))
    pushes = asked.filter(pl.col("op") == "push").join(arrived, on="request", how="semi")
    spent = _spent(queued, phases)
    share = _share_at_work(queued, served)
    missing, rest = spent[:, 0], spent[:, 1]
    shard = queued["shard"].to_numpy()
    return Queues(
        at_work_ns=_by_shard(shard, rest * share),
        held_ns=_by_shard(shard, rest * (1 - share)),
        missing_ns=float(missing.sum()),
        ranks=tuple(pushes["rank"].unique().sort().to_list()),
        alone=_alone(pushes),
    )


def _by_shard(shard: Ints, values: Floats) -> dict[int, float]:
    return {one: float(ns) for one, ns in enumerate(np.bincount(shard, values)) if ns > 0}


def _spent(queued: pl.DataFrame, phases: Phases) -> Floats:
    """Return what each was a worker's queueing, [request, before and after the last push was sent]."""
    moments = queued.select("start_ns", "sent_ns", "end_ns").to_numpy()
    process = queued["process"].to_numpy()
    spent = np.zeros((len(moments), 2))
    for place, one in enumerate(phases.pieces.processes):
        mine = slice(*np.searchsorted(process, [one, one + 1]))
        if mine.start < mine.stop:
            passed = phases.pieces.of_worker(place).spent_before(IS_QUEUE, moments[mine])
            spent[mine] = np.diff(passed, axis=1)
    return spent


def _share_at_work(queued: pl.DataFrame, served: pl.DataFrame) -> Floats:
    """Return in what share of the time after the last push was sent the shard was at work."""
    sent, end, shard = (queued[name].to_numpy() for name in ("sent_ns", "end_ns", "shard"))
    share = np.zeros(len(sent))
    moved = (pl.col("op") != "receive") | (pl.col("bytes").fill_null(1) > 0)
    for (one,), work in served.filter(moved).partition_by("shard", as_dict=True).items():
        mine = np.flatnonzero(shard == one)
        ordered = work.sort("start_ns")
        worked = sum_work_until(ordered["start_ns"].to_numpy(), ordered["end_ns"].to_numpy())
        share[mine] = (worked(end[mine]) - worked(sent[mine])) / np.maximum(
            end[mine] - sent[mine], 1
        )
    return np.clip(share, 0.0, 1.0)


def _alone(pushes: pl.DataFrame) -> pl.DataFrame:
    """Return who sent last in each step, and how much later than the others (`ALONE_COLUMNS`)."""
    sent = pl.col("start_ns").max().alias("sent")
    ready = pushes.group_by("step", "rank").agg(sent).sort("sent", "rank")
    ends = ready.group_by("step", maintain_order=True).agg(
        pl.col("rank").last(),
        alone_ns=pl.col("sent").last() - pl.col("sent").slice(-2, 1).first(),
        ranks=pl.len(),
    )
    fair = 1 / pl.col("ranks")
    variance = pl.col("alone_ns").cast(pl.Float64) ** 2 * fair * (1 - fair)
    found = ends.filter(pl.col("ranks") > 1).with_columns(variance=variance).sort("rank", "step")
    return found.select(pl.col(name).cast(kind) for name, kind in ALONE_COLUMNS.items())


def held_requests(exchange: Exchange, held_ns: Mapping[int, float], workers: int) -> list[Finding]:
    """Report the shards that hold requests most, if that takes enough of the workers' time.

    A shard that has all that a request waits for, and neither aggregates, applies nor replies, does what
    it did not record, or does not run: a lock, other work of its process, too few cores. As time without
    a span is a rank's own, that time is the shard's. Which of these it is nothing tells, so it is an
    opportunity, at best as large as the time itself.
    """
    held = np.array([held_ns.get(shard, 0.0) for shard in exchange.shards])
    share = held / (workers * exchange.job_ns)
    columns = np.flatnonzero(share > share.mean() / 2).tolist()
    saving = float(share[columns].sum())
    if saving < MIN_SAVING_TO_REPORT_HELD_REQUESTS:
        return []
    if len(exchange.exposed) < MIN_STEPS_TO_JUDGE_HELD_REQUESTS:
        return []
    shards = [exchange.shards[column] for column in columns]
    one = len(shards) == 1
    return [
        Finding.of(
            "ps_uninstrumented",
            {
                "who": f"{fmt.listing('PS shard', shards)} {'holds' if one else 'hold'}",
                "held": fmt.percent(saving),
                "they": "it does" if one else "they do",
            },
            shards=tuple(shards),
            hosts=exchange.hosts_of(columns),
            phase="ps",
            saving=saving,
            cost=saving,
            evidence={"held": dict(zip(map(str, exchange.shards), share.tolist(), strict=True))},
        )
    ]
