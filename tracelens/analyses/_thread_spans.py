"""The spans of training threads and of devices, and what each means for its thread's time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.analyses import _surroundings
from tracelens.analyses._partition import (
    BLOCKED,
    CATEGORIES,
    COMMUNICATION,
    IDLE,
    OWN_CATEGORIES,
    PS_QUEUE,
    QUEUED,
    USER,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.trace import Trace

__all__ = ["device_spans", "thread_spans"]

# What a span of each kind means for its thread's time; steps mean nothing, they are the windows.
_MEANING: Final[dict[str, int]] = {
    **{kind: CATEGORIES.index(kind) for kind in OWN_CATEGORIES},
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


def thread_spans(trace: Trace, device: pl.DataFrame) -> pl.DataFrame:
    """Return the training threads' spans: process, times, meaning, and the number of their name."""
    threads = trace.workers.select("process", thread="training_thread").lazy()
    code = _coded("op", _MEANING_OF_OP, _coded("kind", _MEANING, pl.lit(USER, pl.Int64)))
    return (
        trace.spans.filter(pl.col("kind") != "step", ~_surroundings.REDUCED_ON_DEVICE)
        .join(threads, on=["process", "thread"], how="semi")
        .select(
            "process",
            "start_ns",
            end_ns=pl.col("end_ns").fill_null(_surroundings.FOREVER),
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
    """Return the workers' own work as their devices timed it, like `thread_spans`."""
    workers = trace.workers.select("process").lazy()
    return (
        trace.spans.filter(
            pl.col("device_duration_ns").is_not_null(), pl.col("kind").is_in(OWN_CATEGORIES)
        )
        .join(workers, on="process", how="semi")
        .sort("process", "depth", maintain_order=True)
        .select(
            "process",
            start_ns="device_start_ns",
            end_ns=pl.col("device_start_ns") + pl.col("device_duration_ns"),
            code=_coded("kind", _MEANING, pl.lit(USER, pl.Int64)),
            name=pl.col("name").to_physical(),
        )
        .collect()
    )
