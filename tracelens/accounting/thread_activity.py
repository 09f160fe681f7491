"""Input of the partition: spans of training threads and devices, and concurrent activity.

Around a training thread are the collectives that not all have entered, requests in servers' queues,
communication in flight, and recorded causes of idleness, from the records of the rank and its partners.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.partition import (
    BLOCKED,
    CATEGORIES,
    COMMUNICATION,
    COMPUTE_CATEGORIES,
    IDLE,
    PS_QUEUE,
    QUEUED,
    USER,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.arrays import Ints
    from tracelens.model.trace import Trace


# What a span of each kind means for its thread's time; steps mean nothing, they are the windows.
_MEANING: Final[dict[str, int]] = {
    **{kind: CATEGORIES.index(kind) for kind in COMPUTE_CATEGORIES},
    "device": IDLE,
    "reduction": COMMUNICATION,
    "ps": COMMUNICATION,
    "elastic": COMMUNICATION,
    "wait": BLOCKED,
}
# Elastic training's own work and its queue for a turn, whatever is in flight; idleness of known cause.
_MEANING_OF_OP: Final[dict[str, int]] = {
    "launch": IDLE,
    "turn_wait": PS_QUEUE,
    "worker_update": CATEGORIES.index("update"),
    "master_update": CATEGORIES.index("update"),
}
FOREVER: Final = 2**62  # later than any time of a trace; windows cut it
_CAUSES: Final = ("gc", "device", "checkpoint")
_IN_FLIGHT: Final = ("reduction", "ps", "elastic")
_SERVICE: Final = ("aggregate", "apply", "reply")
_COLUMNS: Final = ("process", "start_ns", "end_ns")
# A reduction that a thread only queues: it is in flight on the device.
REDUCED_ON_DEVICE: Final = (pl.col("kind") == "reduction") & pl.col(
    "device_duration_ns"
).is_not_null()


def thread_spans(trace: Trace, device: pl.DataFrame) -> pl.DataFrame:
    """Return the training threads' spans: process, times, meaning, and the number of their name."""
    threads = trace.workers.select("process", thread="training_thread").lazy()
    code = _coded("op", _MEANING_OF_OP, _coded("kind", _MEANING, pl.lit(USER, pl.Int64)))
    return (
        trace.spans.filter(pl.col("kind") != "step", ~REDUCED_ON_DEVICE)
        .join(threads, on=["process", "thread"], how="semi")
        .select(
            "process",
            "start_ns",
            end_ns=pl.col("end_ns").fill_null(FOREVER),
            code=_queued(code, device),
            name=pl.col("name").to_physical(),
        )
        .collect()
    )


def _coded(column: str, codes: Mapping[str, int], otherwise: pl.Expr) -> pl.Expr:
    """Return numbers for the words of a column."""
    found = otherwise
    for word, code in codes.items():
        found = pl.when(pl.col(column) == word).then(pl.lit(code, pl.Int64)).otherwise(found)
    return found


def _queued(code: pl.Expr, device: pl.DataFrame) -> pl.Expr:
    """Mark the spans that only give the process's device such work, or await it."""
    if device.is_empty():
        return code
    known = device.select("process", "code").unique()
    awaits = known.select("process", code=pl.lit(IDLE, pl.Int64)).unique()
    pair = pl.col("process").cast(pl.Int64) * QUEUED + pl.col("code")
    pairs = pl.concat([known, awaits]).select(pair).to_series()
    only_queues = (pl.col("process").cast(pl.Int64) * QUEUED + code).is_in(pairs.to_list())
    return pl.when(only_queues).then(code + QUEUED).otherwise(code)


def device_spans(trace: Trace) -> pl.DataFrame:
    """Return the workers' own work as their devices timed it, like `thread_spans`.

    A device's work of a phase that nobody told (kind ``device``: a kernel) counts as the user's.
    """
    workers = trace.workers.select("process").lazy()
    works = pl.col("kind").is_in([*COMPUTE_CATEGORIES, "device"])
    return (
        trace.spans.filter(pl.col("device_duration_ns").is_not_null(), works)
        .join(workers, on="process", how="semi")
        .sort("process", "depth", maintain_order=True)
        .select(
            "process",
            start_ns="device_start_ns",
            end_ns=pl.col("device_start_ns") + pl.col("device_duration_ns"),
            code=_coded("kind", _MEANING | {"device": USER}, pl.lit(USER, pl.Int64)),
            name=pl.col("name").to_physical(),
        )
        .collect()
    )


def collective_waits(trace: Trace) -> pl.DataFrame:
    """Return when each rank was blocked in a collective that not all had entered."""
    start, never = pl.col("start_ns"), pl.col("last_arrival_ns").is_null()
    missing = never & pl.col("last_rank").is_not_null()
    end = (
        pl.when(missing)
        .then(pl.col("end_ns").fill_null(FOREVER))
        .otherwise(start + pl.col("wait_ns"))
    )
    return trace.arrivals.select("process", "start_ns", end_ns=end).drop_nulls()


def in_flight(trace: Trace) -> pl.DataFrame:
    """Return the communication in flight concurrently with each training thread."""
    beside = _beside(trace, _IN_FLIGHT).filter(~REDUCED_ON_DEVICE).select(*_COLUMNS)
    queued = trace.spans.filter(REDUCED_ON_DEVICE).select(
        "process",
        start_ns="device_start_ns",
        end_ns=pl.col("device_start_ns") + pl.col("device_duration_ns"),
    )
    return pl.concat([beside, queued]).collect()


def idle_causes(trace: Trace) -> pl.DataFrame:
    """Return other recorded causes of idle time: pauses, device work."""
    tracks = trace.threads.filter("in_flight").select("process", "thread").lazy()
    beside = _beside(trace, _CAUSES).join(tracks, on=["process", "thread"], how="anti")
    device_end = pl.col("device_start_ns") + pl.col("device_duration_ns")
    device = trace.spans.filter(device_end.is_not_null()).select(
        "process", start_ns="device_start_ns", end_ns=device_end
    )
    return pl.concat([beside.select(*_COLUMNS), device]).collect()


def server_queues(trace: Trace) -> pl.DataFrame:
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
    # A pull carries nothing until its reply: before that it is in the queue, also unseen by a shard
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


def training_threads(trace: Trace) -> Ints:
    """Return each process's training thread, by process."""
    known = trace.processes.select("process", "training_thread")
    threads = np.full(int(trace.processes["process"].max() or 0) + 1, -1, np.int64)  # type: ignore[arg-type]  # a column of numbers
    threads[known["process"].to_numpy()] = known["training_thread"].fill_null(-1).to_numpy()
    return threads
