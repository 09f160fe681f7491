"""Parameter-server shards: who holds the bytes, who serves longest, where requests stand in line.

Worker and shard records of one request are joined by the request id that its message carried. Load is
judged by bytes and by busy time: a synchronous step's PS part lasts as long as its busiest shard, so
even placement would shorten what workers give to the servers by mean / max of the shards' busy time (the
effective number of shards is total / max, Mathuriya et al. 2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.analyses.result import Finding

if TYPE_CHECKING:
    from tracelens.analyses.phases import Phases
    from tracelens.trace import Trace

__all__ = ["SHARD_COLUMNS", "Shards", "measure"]

HOT: Final = 1.25  # times the mean bytes; bytes are exact, only a gain that matters is in doubt
WORTH_SAYING: Final = 0.03  # of job time
EXPOSED: Final = 0.10  # of the workers' time: below, the servers are hidden and harmless
_SAMPLES: Final = 400  # of steps, for the interval
SERVICE: Final = ("aggregate", "apply", "reply")

SHARD_COLUMNS: Final[dict[str, pl.DataType]] = {
    "shard": pl.Int32(),
    "rank": pl.Int32(),
    "host": pl.String(),
    "bytes": pl.Int64(),  # pushed to and pulled from it by all workers
    "requests": pl.Int64(),
    "service_ns": pl.Int64(),  # aggregate + apply + reply
    "queue_ns": pl.Int64(),  # from received to the begin of service, over all requests
    "queue_depth": pl.Float64(),  # mean on arrival
    "busy_share": pl.Float64(),  # of the time in which workers had requests with it
    "bytes_share": pl.Float64(),
}
TRAFFIC_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "shard": pl.Int32(),
    "op": pl.String(),
    "bytes": pl.Int64(),
    "requests": pl.Int64(),
    "ns": pl.Int64(),
}


@dataclass(frozen=True)
class Shards:
    """Load per shard, and per worker and shard; empty tables where a run has no PS."""

    loads: pl.DataFrame
    traffic: pl.DataFrame
    findings: tuple[Finding, ...]


def measure(trace: Trace, phases: Phases) -> Shards:
    """Measure the shards' load and look for a hot one."""
    requests = trace.spans.filter(
        (pl.col("kind") == "ps") & pl.col("end_ns").is_not_null()
    ).with_columns(ns=pl.col("end_ns") - pl.col("start_ns"), op=pl.col("op").cast(pl.String))
    asked = requests.join(trace.workers.select("process").lazy(), on="process", how="semi")
    served = requests.join(trace.shards.select("process").lazy(), on="process", how="semi")
    traffic = (
        asked.group_by("rank", "shard", "op")
        .agg(pl.col("bytes").sum(), requests=pl.len().cast(pl.Int64), ns=pl.col("ns").sum())
        .select(*TRAFFIC_COLUMNS)
        .sort("rank", "shard", "op")
        .collect()
    )
    if traffic.is_empty() or trace.shards.is_empty():
        return Shards(pl.DataFrame(schema=SHARD_COLUMNS), traffic, ())
    loads = _loads(trace.shards, traffic, asked.collect(), served.collect())
    findings = _hot_shard(loads, _busy(served.collect()), phases)
    return Shards(loads, traffic, tuple(findings))


def _loads(
    processes: pl.DataFrame, traffic: pl.DataFrame, asked: pl.DataFrame, served: pl.DataFrame
) -> pl.DataFrame:
    volume = traffic.group_by("shard").agg(pl.col("bytes", "requests").sum())
    service = (
        served.filter(pl.col("op").is_in(SERVICE))
        .group_by("shard")
        .agg(service_ns=pl.col("ns").sum())
    )
    depth = served.group_by("shard").agg(queue_depth=pl.col("queue_depth").mean())
    window = asked.group_by("shard", "step", "op").agg(
        window=pl.col("end_ns").max() - pl.col("start_ns").min()
    )
    windows = window.group_by("shard").agg(pl.col("window").sum())
    joined = processes.select(pl.coalesce("shard", "rank").alias("shard"), "rank", "host")
    for part in (volume, service, _queues(served), depth, windows):
        joined = joined.join(part, on="shard", how="left")
    return (
        joined.with_columns(pl.col("bytes", "requests", "service_ns", "queue_ns").fill_null(0))
        .with_columns(
            busy_share=(pl.col("service_ns") / pl.col("window")).clip(0, 1),
            bytes_share=pl.col("bytes") / pl.col("bytes").sum().clip(lower_bound=1),
        )
        .select(*SHARD_COLUMNS)
        .sort("shard")
    )


def _queues(served: pl.DataFrame) -> pl.DataFrame:
    """Return how long requests stood in line at each shard, summed."""
    service = pl.col("op").is_in(SERVICE)
    return (
        served.filter(pl.col("request").is_not_null())
        .group_by("shard", "request")
        .agg(
            begun=pl.col("start_ns").filter(service).min(),
            received=pl.col("end_ns").filter(pl.col("op") == "receive").min(),
        )
        .group_by("shard")
        .agg(queue_ns=(pl.col("begun") - pl.col("received")).clip(lower_bound=0).sum())
    )


def _busy(served: pl.DataFrame) -> pl.DataFrame:
    """Return each shard's busy time per step: receiving or serving, counted once where both."""
    reached = pl.col("end_ns").cum_max().shift(1).over("shard", "step").fill_null(0)
    added = (pl.col("end_ns") - pl.max_horizontal("start_ns", reached)).clip(lower_bound=0)
    ordered = served.sort("shard", "step", "start_ns").with_columns(busy=added)
    return ordered.group_by("shard", "step").agg(pl.col("busy").sum())


def _hot_shard(loads: pl.DataFrame, busy: pl.DataFrame, phases: Phases) -> list[Finding]:
    mean = loads["bytes"].mean()
    if loads.height < 2 or not isinstance(mean, float) or mean <= 0:
        return []
    hottest = loads.sort("bytes", descending=True).row(0, named=True)
    ratio = hottest["bytes"] / mean
    gain = _gain(loads.height, busy, phases)
    hot = ratio >= HOT or hottest["bytes_share"] > 2 / loads.height
    if not hot or gain.exposed < EXPOSED or gain.saving < WORTH_SAYING:
        return []
    return [
        Finding(
            kind="ps_hot_shard",
            category="fault",
            shards=(hottest["shard"],),
            hosts=(hottest["host"],),
            phase="ps",
            pattern="persistent",
            saving=gain.saving,
            interval=gain.interval,
            slowdown=ratio,
            sentence=_sentence(hottest, ratio, gain.exposed, loads),
            evidence={
                "bytes_share": hottest["bytes_share"],
                "max_over_mean_bytes": ratio,
                "effective_shards": loads.height / ratio,
                "busy_share": hottest["busy_share"],
                "exposed": gain.exposed,
            },
        )
    ]


@dataclass(frozen=True)
class _Gain:
    """Shares of the workers' time: given to the servers, and saved by even placement."""

    exposed: float
    saving: float
    interval: tuple[float, float]


def _gain(shards: int, busy: pl.DataFrame, phases: Phases) -> _Gain:
    """Return what even placement would save.

    A step's exchange lasts as long as its busiest shard is busy; with equal shards each would be busy
    for the mean, so the exchange shrinks by mean / max.
    """
    served = pl.col("category").cast(pl.String).is_in(["ps_queue", "transfer"])
    steps = phases.times.group_by("step").agg(
        total=pl.col("ns").sum() / pl.col("process").n_unique(),
        exposed=pl.col("ns").filter(served).sum() / pl.col("process").n_unique(),
    )
    even = busy.group_by("step").agg(
        shrinks=1 - pl.col("busy").sum() / shards / pl.col("busy").max()
    )
    joined = (
        steps.join(even, on="step", how="left")
        .sort("step")
        .with_columns(saved=pl.col("exposed") * pl.col("shrinks").fill_null(0).fill_nan(0))
    )
    total = float(joined["total"].sum()) or 1.0
    saved = joined["saved"].to_numpy()
    draws = np.random.default_rng(0).integers(0, len(saved), (_SAMPLES, len(saved)))
    low, high = np.quantile(saved[draws].sum(axis=1) / total, [0.025, 0.975])
    exposed = float(joined["exposed"].sum()) / total
    return _Gain(exposed, float(saved.sum()) / total, (float(low), float(high)))


def _sentence(hottest: dict[str, Any], ratio: float, exposed: float, loads: pl.DataFrame) -> str:
    return (
        f"PS shard {hottest['shard']} moves {ratio:.1f}x the mean bytes "
        f"({100 * hottest['bytes_share']:.0f} % of all; {loads.height} shards work like "
        f"{loads.height / ratio:.1f}), and workers stand {100 * exposed:.0f} % of the time in "
        "pulls and pushes: place or split its tensors evenly."
    )
