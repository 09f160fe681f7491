"""What a rank's training thread may be waiting for, from the records of the rank and its partners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from tracelens.trace import Trace

FOREVER: Final = 2**62  # later than any time of a trace; windows cut it
_CAUSES: Final = ("gc", "device", "checkpoint")
_IN_FLIGHT: Final = ("reduction", "ps", "elastic")
_SERVICE: Final = ("aggregate", "apply", "reply")
_COLUMNS: Final = ("process", "start_ns", "end_ns")
# A reduction that a thread only queues: it is in flight on the device.
REDUCED_ON_DEVICE: Final = (pl.col("kind") == "reduction") & pl.col(
    "device_duration_ns"
).is_not_null()


def waits(trace: Trace) -> pl.DataFrame:
    """Return when each rank stood in a collective that not all had entered."""
    start, never = pl.col("start_ns"), pl.col("last_arrival_ns").is_null()
    missing = never & pl.col("last_rank").is_not_null()
    end = (
        pl.when(missing)
        .then(pl.col("end_ns").fill_null(FOREVER))
        .otherwise(start + pl.col("wait_ns"))
    )
    return trace.arrivals.select("process", "start_ns", end_ns=end).drop_nulls()


def flying(trace: Trace) -> pl.DataFrame:
    """Return the communication that ran beside each training thread."""
    beside = _beside(trace, _IN_FLIGHT).filter(~REDUCED_ON_DEVICE).select(*_COLUMNS)
    queued = trace.spans.filter(REDUCED_ON_DEVICE).select(
        "process",
        start_ns="device_start_ns",
        end_ns=pl.col("device_start_ns") + pl.col("device_duration_ns"),
    )
    return pl.concat([beside, queued]).collect()


def causes(trace: Trace) -> pl.DataFrame:
    """Return what else explains that a training thread did nothing: pauses, device work."""
    tracks = trace.threads.filter("in_flight").select("process", "thread").lazy()
    beside = _beside(trace, _CAUSES).join(tracks, on=["process", "thread"], how="anti")
    device_end = pl.col("device_start_ns") + pl.col("device_duration_ns")
    device = trace.spans.filter(device_end.is_not_null()).select(
        "process", start_ns="device_start_ns", end_ns=device_end
    )
    return pl.concat([beside.select(*_COLUMNS), device]).collect()


def queues(trace: Trace) -> pl.DataFrame:
    """Return when a request of each worker was with a shard that had not begun to serve it."""
    requests = trace.spans.filter((pl.col("kind") == "ps") & pl.col("request").is_not_null())
    if trace.shards.is_empty() or trace.alignment.unaligned:
        return pl.DataFrame(schema=trace.arrivals.select(*_COLUMNS).schema)
    shards, workers = (
        requests.join(part.select("process").lazy(), on="process", how="semi")
        for part in (trace.shards, trace.workers)
    )
    begun = pl.col("start_ns").filter(pl.col("op").is_in(_SERVICE)).min()
    served = shards.group_by("request").agg(
        received=pl.col("end_ns").filter(pl.col("op") == "receive").min(), begun=begun
    )
    end = pl.col("end_ns").fill_null(FOREVER)
    # A pull carries nothing until its reply: before that it stands in line, also unseen by a shard
    # that is too busy to take it in.
    asking = pl.col("op") == "pull"
    start = pl.when(asking).then("start_ns").otherwise(pl.max_horizontal("start_ns", "received"))
    return (
        workers.filter(pl.col("op").is_in(["push", "pull"]))
        .join(served.filter(pl.col("received").is_not_null()), on="request")
        .select("process", start_ns=start, end_ns=pl.min_horizontal(end, "begun"))
        .filter(pl.col("start_ns") < pl.col("end_ns"))
        .collect()
    )


def _beside(trace: Trace, kinds: tuple[str, ...]) -> pl.LazyFrame:
    """Return spans of some kinds that are not on the worker's training thread."""
    threads = trace.workers.select("process", "training_thread").lazy()
    return (
        trace.spans.filter(pl.col("kind").is_in(kinds))
        .join(threads, on="process")
        .filter(pl.col("thread") != pl.col("training_thread"))
        .with_columns(pl.col("end_ns").fill_null(FOREVER))
    )
