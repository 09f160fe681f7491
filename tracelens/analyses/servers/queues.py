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
    """Summed over workers, ns: for shards at work, that hold requests, for pushes not yet sent.

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
    """Divide the time in which workers' requests are queued.

    `asked` are requests as workers recorded them, `served` as shards did.
    """
    queued = find_server_queues(trace)
    if queued.is_empty():
        return NO_QUEUES
    arrived = served.filter(pl.col("op").is_in(["receive", "aggregate"]))
    pushes = asked.filter(pl.col("op") == "push").join(arrived, on="request", how="semi")
    missing_ns, waiting_ns = _measure_queueing(queued, phases).T
    share = _measure_share_at_work(queued, served)
    shard = queued["shard"].to_numpy()
    return Queues(
        at_work_ns=_sum_by_shard(shard, waiting_ns * share),
        held_ns=_sum_by_shard(shard, waiting_ns * (1 - share)),
        missing_ns=float(missing_ns.sum()),
        ranks=tuple(pushes["rank"].unique().sort().to_list()),
        alone=_find_last_pushes(pushes),
    )


def _sum_by_shard(shard: Ints, values_ns: Floats) -> dict[int, float]:
    sums_ns = np.bincount(shard, values_ns).tolist()
    return {number: ns for number, ns in enumerate(sums_ns) if ns > 0}


def _measure_queueing(queued: pl.DataFrame, phases: Phases) -> Floats:
    """Return the worker's queueing, ns, [request, before and after the last push was sent]."""
    moments_ns = queued.select("start_ns", "sent_ns", "end_ns").to_numpy()
    process = queued["process"].to_numpy()
    queueing_ns = np.zeros((len(moments_ns), 2))
    for index, worker in enumerate(phases.pieces.processes):
        rows = slice(*np.searchsorted(process, [worker, worker + 1]))
        if rows.start < rows.stop:
            until_ns = phases.pieces.of_worker(index).spent_before(_IS_QUEUE, moments_ns[rows])
            queueing_ns[rows] = np.diff(until_ns, axis=1)
    return queueing_ns


def _measure_share_at_work(queued: pl.DataFrame, served: pl.DataFrame) -> Floats:
    """Return for what share of the time after the last push was sent the shard was at work."""
    sent_ns, end_ns, shard = (queued[name].to_numpy() for name in ("sent_ns", "end_ns", "shard"))
    share = np.zeros(len(sent_ns))
    moves_bytes = (pl.col("op") != "receive") | (pl.col("bytes").fill_null(1) > 0)
    for (number,), work in served.filter(moves_bytes).partition_by("shard", as_dict=True).items():
        rows = np.flatnonzero(shard == number)
        busy = Intervals.merge(work["start_ns"].to_numpy(), work["end_ns"].to_numpy())
        worked_ns = busy.passed_before(end_ns[rows]) - busy.passed_before(sent_ns[rows])
        share[rows] = worked_ns / np.maximum(end_ns[rows] - sent_ns[rows], 1)
    return np.clip(share, 0.0, 1.0)


def _find_last_pushes(pushes: pl.DataFrame) -> pl.DataFrame:
    """Find the rank that sent last in each step, and how much later (`ALONE_COLUMNS`)."""
    sent = pl.col("start_ns").max().alias("sent")
    by_rank = pushes.group_by("step", "rank").agg(sent).sort("sent", "rank")
    latest = by_rank.group_by("step", maintain_order=True).agg(
        pl.col("rank").last(),
        alone_ns=pl.col("sent").last() - pl.col("sent").slice(-2, 1).first(),
        ranks=pl.len(),
    )
    fair = 1 / pl.col("ranks")
    variance = pl.col("alone_ns").cast(pl.Float64) ** 2 * fair * (1 - fair)
    shared = latest.filter(pl.col("ranks") > 1).with_columns(variance=variance).sort("rank", "step")
    return shared.select(pl.col(name).cast(kind) for name, kind in ALONE_COLUMNS.items())


def find_held_requests(
    exchange: Exchange, held_ns: Mapping[int, float], workers: int
) -> list[Finding]:
    """Report the shards that hold requests most, if that takes enough of the workers' time.

    They do what they did not record, or do not run: a lock, other work, too few cores. Which of these is
    not known, so it is an opportunity, at best as large as the time itself.
    """
    held = np.array([held_ns.get(shard, 0.0) for shard in exchange.shards])
    share = held / (workers * exchange.job_ns)
    columns = np.flatnonzero(share > share.mean() / 2).tolist()
    saving = float(share[columns].sum())
    is_short = len(exchange.exposed) < MIN_STEPS_TO_JUDGE_HELD_REQUESTS
    if saving < MIN_SAVING_TO_REPORT_HELD_REQUESTS or is_short:
        return []
    shards = [exchange.shards[column] for column in columns]
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
            hosts=exchange.hosts_of(columns),
            phase="ps",
            saving=saving,
            cost=saving,
            evidence={"held": dict(zip(map(str, exchange.shards), share.tolist(), strict=True))},
        )
    ]
