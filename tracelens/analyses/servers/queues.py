"""Why workers are queued at servers: a shard is at work, or another worker's push is not sent yet.

A pull waits until the last push of its step (and variable) is sent, as ranks wait in a collective for
the last one; from then on for the shard: its link, its processor, requests before this one. What of that
time the shard was not at work in, nothing recorded explains. Only time counts that is a worker's
``ps_queue`` (`accounting/phases.py`), each moment once: that of the request that is served last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES
from tracelens.accounting.thread_activity import server_queues
from tracelens.replay.parameter_servers import worked_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Floats
    from tracelens.model.trace import Trace

__all__ = ["NO_QUEUES", "Queues", "measure_queues"]

IS_QUEUE: Final = np.array(CATEGORIES) == "ps_queue"
_SAME: Final = ("shard", "step", "key")
_ALONE: Final[dict[str, pl.DataType]] = {"rank": pl.Int32(), "alone_ns": pl.Int64()}


@dataclass(frozen=True)
class Queues:
    """Summed over workers, nanoseconds: queued while a shard was at work, and for pushes not yet sent.

    `alone` says for how long each rank's push was the only one that was missing, `by_chance_ns` by how
    much that differs from one rank to the next if any of them may be the last one in each step.
    """

    at_work_ns: Mapping[int, float]
    missing_ns: float
    alone: pl.DataFrame
    by_chance_ns: float


NO_QUEUES: Final = Queues({}, 0.0, pl.DataFrame(schema=_ALONE), 0.0)


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
    queued = _apart(server_queues(trace))
    if queued.is_empty():
        return NO_QUEUES
    pushes = _sent(asked, served)
    queued = _with_sent(queued, pushes)
    spent = _spent(queued, phases)
    share = _share_at_work(queued, served)
    missing, rest = spent[:, 0], spent[:, 1] * share
    by_shard = np.bincount(queued["shard"].to_numpy(), rest)
    alone = _alone(pushes)
    caused = alone.group_by("rank").agg(pl.col("alone_ns").sum())
    ranks = pushes.select("rank").unique().sort("rank")
    return Queues(
        at_work_ns={shard: float(ns) for shard, ns in enumerate(by_shard) if ns > 0},
        missing_ns=float(missing.sum()),
        alone=ranks.join(caused, on="rank", how="left").fill_null(0).sort("rank"),
        by_chance_ns=_by_chance_ns(alone),
    )


def _apart(queued: pl.DataFrame) -> pl.DataFrame:
    """Leave every moment of a worker to the request that is served last of those queued in it."""
    ordered = queued.filter(pl.col("shard").is_not_null()).sort(
        "process",
        "end_ns",
        "start_ns",
        "shard",
        descending=[False, True, True, False],
    )
    later = pl.col("start_ns").cum_min().shift(1).over("process")
    return ordered.with_columns(end_ns=pl.min_horizontal("end_ns", later)).filter(
        pl.col("start_ns") < pl.col("end_ns")
    )


def _sent(asked: pl.DataFrame, served: pl.DataFrame) -> pl.DataFrame:
    """Return who sent each push when, and when its shard had it."""
    got = (
        served.filter(pl.col("op").is_in(["receive", "aggregate"]))
        .group_by("request")
        .agg(got=pl.col("end_ns").min())
    )
    pushes = asked.filter(pl.col("op") == "push").join(got, on="request", how="inner")
    return pushes.select(*_SAME, "rank", "got", sent="start_ns").with_columns(
        pl.col("key").fill_null(-1)
    )


def _with_sent(queued: pl.DataFrame, pushes: pl.DataFrame) -> pl.DataFrame:
    """Add when the last push was sent that a request waits for; its own begin where there is none."""
    received = pushes.sort("got").with_columns(last=pl.col("sent").cum_max().over(_SAME))
    joined = queued.sort("end_ns").join_asof(
        received.select(*_SAME, "got", "last"),
        left_on="end_ns",
        right_on="got",
        by=_SAME,
        strategy="backward",
        check_sortedness=False,
    )
    waits = pl.when("for_pushes").then(pl.col("last").fill_null(0)).otherwise(0)
    return joined.with_columns(sent_ns=waits.clip("start_ns", "end_ns")).sort("process", "start_ns")


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
        worked = worked_until(ordered["start_ns"].to_numpy(), ordered["end_ns"].to_numpy())
        share[mine] = (worked(end[mine]) - worked(sent[mine])) / np.maximum(
            end[mine] - sent[mine], 1
        )
    return np.clip(share, 0.0, 1.0)


def _alone(pushes: pl.DataFrame) -> pl.DataFrame:
    """Return who sent last in each step, and how much later than the others."""
    ready = pushes.group_by("step", "rank").agg(pl.col("sent").max()).sort("sent", "rank")
    ends = ready.group_by("step", maintain_order=True).agg(
        pl.col("rank").last(),
        alone_ns=pl.col("sent").last() - pl.col("sent").slice(-2, 1).first(),
        ranks=pl.len(),
    )
    return ends.filter(pl.col("ranks") > 1)


def _by_chance_ns(alone: pl.DataFrame) -> float:
    if alone.is_empty():
        return 0.0
    fair = 1 / alone["ranks"].to_numpy()
    each = np.square(alone["alone_ns"].to_numpy(), dtype=np.float64)
    return float(np.sqrt((each * fair * (1 - fair)).sum()))
