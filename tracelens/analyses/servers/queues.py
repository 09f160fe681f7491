"""Why workers are queued at servers: a shard is at work, or another worker's push is not sent yet.

While a shard that a request waits for is not at work, no span covers what it does: it holds the request.
Only time counts that is a worker's ``ps_queue`` (`accounting/server_queues.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES
from tracelens.accounting.jitter import ALONE_COLUMNS
from tracelens.accounting.server_queues import find_server_queues
from tracelens.model import fmt
from tracelens.model.findings import Finding
from tracelens.model.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.accounting.phases import Phases
    from tracelens.analyses.servers.utilisation import Exchange
    from tracelens.arrays import Floats, Ints
    from tracelens.model.trace import Trace

# of the job: requests held for less are not reported [policy]
MIN_SAVING_TO_REPORT_HELD_REQUESTS: Final = 0.03
# steps: held requests are not judged by fewer [chosen]
MIN_STEPS_TO_JUDGE_HELD_REQUESTS: Final = 20
_IS_QUEUE: Final = np.array(CATEGORIES) == "ps_queue"


@dataclass(frozen=True, eq=False)
class Queues:
    """How long workers were queued, in all: for shards at work, that hold requests, for pushes not sent.

    `alone` says for how long the push of each of `ranks` was the only one that was missing, by step
    (`accounting/jitter.py`).
    """

    at_work_ns_by_shard: Mapping[int, float]
    held_ns_by_shard: Mapping[int, float]
    missing_push_ns: float
    ranks: tuple[int, ...]
    alone: pl.DataFrame


NO_QUEUES: Final = Queues(
    at_work_ns_by_shard={},
    held_ns_by_shard={},
    missing_push_ns=0.0,
    ranks=(),
    alone=pl.DataFrame(schema=ALONE_COLUMNS),
)


def measure_queues(
    trace: Trace, phases: Phases, requests: pl.DataFrame, services: pl.DataFrame
) -> Queues:
    """Divide the time in which workers' requests are queued, by what shards and other workers do.

    `requests` has a row per request of a worker, `services` one per operation of a shard.
    """
    queued_requests = find_server_queues(trace)
    if queued_requests.is_empty():
        return NO_QUEUES
    arrivals = services.filter(pl.col("op").is_in(["receive", "aggregate"]))
    pushes = requests.filter(pl.col("op") == "push").join(arrivals, on="request", how="semi")
    queueing_ns = _measure_queueing(queued_requests, phases)
    before_last_push_ns, after_last_push_ns = queueing_ns.T  # [request]
    busy_share = _measure_busy_share(queued_requests, services)
    shard = queued_requests["shard"].to_numpy()
    return Queues(
        at_work_ns_by_shard=_sum_by_shard(shard, after_last_push_ns * busy_share),
        held_ns_by_shard=_sum_by_shard(shard, after_last_push_ns * (1 - busy_share)),
        missing_push_ns=float(before_last_push_ns.sum()),
        ranks=tuple(pushes["rank"].unique().sort().to_list()),
        alone=_find_last_pushes(pushes),
    )


def _sum_by_shard(shard: Ints, values_ns: Floats) -> dict[int, float]:
    sums_ns = np.bincount(shard, values_ns).tolist()
    return {number: ns for number, ns in enumerate(sums_ns) if ns > 0}


def _measure_queueing(requests: pl.DataFrame, phases: Phases) -> Floats:
    """Return for how long each request's worker was queued, ns, before and after the last push.

    `requests` has a row per stretch of a request's queue, by process. What is returned is [row, 2]:
    until `sent_ns`, and since then.
    """
    times_ns = requests.select("start_ns", "sent_ns", "end_ns").to_numpy()
    process = requests["process"].to_numpy()
    queueing_ns = np.zeros((len(times_ns), 2))
    for worker, worker_process in enumerate(phases.pieces.processes):
        rows = slice(*np.searchsorted(process, [worker_process, worker_process + 1]))
        if rows.start < rows.stop:
            queued_before_ns = phases.pieces.unpack_worker(worker).sum_ns_before(
                _IS_QUEUE, times_ns[rows]
            )
            queueing_ns[rows] = np.diff(queued_before_ns, axis=1)
    return queueing_ns


def _measure_busy_share(requests: pl.DataFrame, services: pl.DataFrame) -> Floats:
    """Return for what share of the time from the last push to its end a shard works, [request].

    `requests` has one row per request, with the last push before it (`sent_ns`), `services` one per
    operation of a shard.
    """
    sent_ns, end_ns, shard = (requests[name].to_numpy() for name in ("sent_ns", "end_ns", "shard"))
    busy_share = np.zeros(len(sent_ns))
    is_work = (pl.col("op") != "receive") | (pl.col("bytes").fill_null(1) > 0)
    for (number,), work in services.filter(is_work).partition_by("shard", as_dict=True).items():
        rows = np.flatnonzero(shard == number)
        busy = Intervals.merge(work["start_ns"].to_numpy(), work["end_ns"].to_numpy())
        busy_ns = busy.covered_ns_before(end_ns[rows]) - busy.covered_ns_before(sent_ns[rows])
        busy_share[rows] = busy_ns / np.maximum(end_ns[rows] - sent_ns[rows], 1)
    return np.clip(busy_share, 0.0, 1.0)


def _find_last_pushes(pushes: pl.DataFrame) -> pl.DataFrame:
    """Return a row per step with the rank that pushed last, and how much later (`ALONE_COLUMNS`).

    `variance` is what chance gives if each rank is last as often. `pushes` has a row each.
    """
    sent_ns = pl.col("start_ns").max()
    by_rank = pushes.group_by("step", "rank").agg(sent_ns=sent_ns).sort("sent_ns", "rank")
    last_ranks = by_rank.group_by("step", maintain_order=True).agg(
        pl.col("rank").last(),
        alone_ns=pl.col("sent_ns").last() - pl.col("sent_ns").slice(-2, 1).first(),
        ranks=pl.len(),
    )
    fair_share = 1 / pl.col("ranks")
    variance = pl.col("alone_ns").cast(pl.Float64) ** 2 * fair_share * (1 - fair_share)
    among_several = last_ranks.filter(pl.col("ranks") > 1).with_columns(variance=variance)
    return among_several.sort("rank", "step").select(
        pl.col(name).cast(kind) for name, kind in ALONE_COLUMNS.items()
    )


def find_held_requests(
    exchange: Exchange, held_ns_by_shard: Mapping[int, float], worker_count: int
) -> list[Finding]:
    """Report the shards that hold requests most, if that takes enough of the workers' time.

    They do what they did not record, or do not run: a lock, other work, too few cores. Which of these is
    not known, so it is an opportunity, at best as large as the time itself.
    """
    held_ns = np.array(
        [held_ns_by_shard.get(shard, 0.0) for shard in exchange.shard_ranks]
    )  # [shard]
    held_share = held_ns / (worker_count * exchange.job_ns)  # of the workers' time
    columns = np.flatnonzero(held_share > held_share.mean() / 2).tolist()
    saving = float(held_share[columns].sum())
    is_short = len(exchange.exposed_wait_ns) < MIN_STEPS_TO_JUDGE_HELD_REQUESTS
    if saving < MIN_SAVING_TO_REPORT_HELD_REQUESTS or is_short:
        return []
    shards = [exchange.shard_ranks[column] for column in columns]
    hold, they_do = ("holds", "it does") if len(shards) == 1 else ("hold", "they do")
    return [
        Finding.of(
            "ps_uninstrumented",
            {
                "who": f"{fmt.listing('PS shard', shards)} {hold}",
                "held": fmt.percent(saving),
                "they": they_do,
            },
            shards=tuple(shards),
            hosts=exchange.list_hosts(columns),
            phase="ps",
            saving=saving,
            cost=saving,
            evidence={
                "held": dict(zip(map(str, exchange.shard_ranks), held_share.tolist(), strict=True))
            },
        )
    ]
