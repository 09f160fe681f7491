"""What each parameter-server shard carried: bytes, requests, service and queueing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from tracelens.trace import Trace

SERVICE: Final = ("aggregate", "apply", "reply")
LOAD_COLUMNS: Final = {
    "shard": pl.Int32(),
    "host": pl.String(),
    "bytes": pl.Int64(),  # received and answered
    "requests": pl.Int64(),
    "service_ns": pl.Float64(),  # mean time in service a request
    "queue_ns": pl.Float64(),  # mean time between received and served
    "busy": pl.Float64(),  # share of the run in service
}


@dataclass(frozen=True)
class Loads:
    """`shards` as in `LOAD_COLUMNS`; `traffic` is worker, shard, bytes."""

    shards: pl.DataFrame
    traffic: pl.DataFrame


def measure(trace: Trace, spans: pl.DataFrame, whole_ns: int) -> Loads:
    """Sum up the spans that shards recorded (`spans`) over a run of `whole_ns`."""
    number = pl.col("shard").fill_null(pl.col("rank"))
    processes = trace.shards.select("process", "host", shard=number)
    table = spans.drop("shard").join(processes, on="process")
    table = table.with_columns(
        pl.col("op").cast(pl.String), lasted=pl.col("end_ns") - pl.col("start_ns")
    )
    moved = pl.col("bytes").filter(pl.col("op").is_in(["receive", "reply"])).sum()
    served = pl.col("lasted").filter(pl.col("op").is_in(SERVICE)).sum()
    sums = table.group_by("shard", "host").agg(
        bytes=moved,
        requests=(pl.col("op") == "receive").sum().cast(pl.Int64),
        served=served,
    )
    requests = pl.max_horizontal("requests", pl.lit(1))
    sums = sums.join(_queueing(table), on="shard", how="left").with_columns(
        service_ns=pl.col("served") / requests, busy=pl.col("served") / whole_ns
    )
    return Loads(sums.select(*LOAD_COLUMNS).sort("shard"), _traffic(table))


def _queueing(table: pl.DataFrame) -> pl.DataFrame:
    """Match each request's reception with its service, by id; those without one are left out."""
    keys = ["shard", "request"]
    received = table.filter(pl.col("op") == "receive").select(*keys, "end_ns")
    served = table.filter(pl.col("op").is_in(["aggregate", "reply"])).select(*keys, "start_ns")
    both = received.drop_nulls().join(served.drop_nulls(), on=keys)
    waited = pl.max_horizontal(pl.col("start_ns") - pl.col("end_ns"), pl.lit(0))
    return both.group_by("shard").agg(queue_ns=waited.mean())


def _traffic(table: pl.DataFrame) -> pl.DataFrame:
    moved = table.filter(pl.col("op").is_in(["receive", "reply"])).drop_nulls("peer")
    sums = moved.group_by("peer", "shard").agg(pl.col("bytes").sum())
    return sums.rename({"peer": "worker"}).sort("worker", "shard")
