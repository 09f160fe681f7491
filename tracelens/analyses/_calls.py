"""Collectives as one row a call: when all had come, and how long the wire then took.

The rank that comes last waits for nobody, so its own duration is the transfer, and no two clocks are
compared: ``wire_ns`` is the shortest duration among the ranks, counted from the end of the call before
where that one still held the wire. Where ranks need not all wait for each other (broadcast, reduce and
the like) it is the median rank's transfer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.schema.vocabulary import FULL_COLLECTIVES

if TYPE_CHECKING:
    from tracelens.trace import Trace

__all__ = ["CALL_COLUMNS", "bus_factor", "measure", "training_threads"]

CALL_COLUMNS: Final[dict[str, pl.DataType]] = {
    "communicator": pl.Categorical(),
    "seq": pl.UInt32(),
    "op": pl.String(),
    "ranks": pl.Int32(),
    "step": pl.Int32(),
    "bytes": pl.Int64(),
    "ready_ns": pl.Int64(),  # the last arrival
    "wire_ns": pl.Int64(),
    "blocking": pl.Boolean(),  # on the training thread, which does nothing else meanwhile
}
_CALL: Final = ("communicator", "seq")
_USED: Final = ("process", *_CALL, "op", "step", "bytes", "thread", "start_ns", "end_ns")


def bus_factor(op: str, ranks: int) -> float:
    """Return by what payload / time is multiplied for the bandwidth that the slowest link must carry.

    Payload is what a rank puts in. Source: nccl-tests, PERFORMANCE.md, which counts all_gather by what a
    rank gets out.
    """
    share = (ranks - 1) / max(ranks, 1)
    factors = {"allreduce": 2 * share, "reduce_scatter": share, "all_to_all": share}
    if op == "all_gather":
        return float(ranks - 1)
    return factors.get(op, 1.0)


def measure(trace: Trace) -> pl.DataFrame:
    """Return every collective that all its ranks came to and left, by communicator and number."""
    complete = pl.col("arrived") == pl.col("expected")
    calls = trace.arrivals.filter(complete).select(*_USED, "expected", "transfer_ns")
    open_ = calls.filter(pl.col("end_ns").is_null()).select(_CALL)
    if open_.height:
        calls = calls.join(open_, on=_CALL, how="anti")
    blocking = training_threads(trace)
    parts = [
        _of_communicator(part.sort("seq", "process"), blocking)
        for part in calls.partition_by("communicator", maintain_order=True)
    ]
    return pl.concat([pl.DataFrame(schema=CALL_COLUMNS), *parts])


def training_threads(trace: Trace) -> npt.NDArray[np.int64]:
    """Return each process's training thread, by process."""
    known = trace.processes.select("process", "training_thread")
    threads = np.full(int(trace.processes["process"].max() or 0) + 1, -1, np.int64)  # type: ignore[arg-type]  # a column of numbers
    threads[known["process"].to_numpy()] = known["training_thread"].fill_null(-1).to_numpy()
    return threads


def _of_communicator(part: pl.DataFrame, training: npt.NDArray[np.int64]) -> pl.DataFrame:
    """Measure the calls of one communicator; its rows are calls times ranks."""
    ranks = part["expected"][0]
    first = part[::ranks]

    def by_call(name: str) -> npt.NDArray[np.int64]:
        return part[name].to_numpy().reshape(-1, ranks).astype(np.int64)

    start, end = by_call("start_ns"), by_call("end_ns")
    before = np.vstack([start[:1], end[:-1]])
    alone = np.minimum.reduce(
        end - np.where(before < end, np.maximum(start, before), start), axis=1
    )
    full = first["op"].cast(pl.String).is_in(FULL_COLLECTIVES).to_numpy()
    if not full.all():
        transfer = part["transfer_ns"].fill_null(0).to_numpy().reshape(-1, ranks)[~full]
        alone[~full] = np.median(transfer, axis=1)
    blocks = (by_call("thread") == training[by_call("process")]).any(axis=1)
    columns: dict[str, pl.Expr | pl.Series] = {
        "ranks": pl.lit(ranks),
        "op": pl.col("op").cast(pl.String),
        "ready_ns": pl.Series(start.max(axis=1)),
        "wire_ns": pl.Series(alone),
        "blocking": pl.Series(blocks),
    }
    return first.with_columns(**columns).select(
        pl.col(name).cast(kind) for name, kind in CALL_COLUMNS.items()
    )
