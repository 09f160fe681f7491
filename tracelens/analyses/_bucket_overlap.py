"""How much of each bucket's communication own work hides, call by call.

With o(t) a rank's own time until t, o(end) - o(start) of a call is hidden; what is exposed until the
last rank has come is waiting, the rest transfer. What runs beside two calls at once counts for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses._partition import CATEGORIES, OWN_CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.analyses._partition import Pieces
    from tracelens.analyses.phases import Phases
    from tracelens.trace import Trace

__all__ = ["BUCKET_COLUMNS", "measure"]

Ints = npt.NDArray[np.int64]

IS_OWN: Final = np.array([name in OWN_CATEGORIES for name in CATEGORIES])
BUCKET_COLUMNS: Final[dict[str, pl.DataType]] = {
    "bucket": pl.Int32(),
    "calls": pl.Int64(),  # of all ranks
    "bytes": pl.Float64(),  # median
    "hidden_ns": pl.Float64(),  # means of a call
    "wait_ns": pl.Float64(),
    "transfer_ns": pl.Float64(),
    "rank": pl.Int32(),  # of the call with most exposed, and when that was
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
}


def measure(trace: Trace, phases: Phases) -> pl.DataFrame:
    """Return a row a bucket, in order; empty where calls name none."""
    known = pl.col("bucket").is_not_null() & pl.col("end_ns").is_not_null()
    calls = trace.arrivals.filter(known & pl.col("last_arrival_ns").is_not_null())
    most = (pl.col("wait_ns") + pl.col("transfer_ns")).arg_max()
    table = (
        _each(calls, phases)
        .group_by("bucket")
        .agg(
            pl.col("bytes").median(),
            pl.col("hidden_ns", "wait_ns", "transfer_ns").mean(),
            pl.col("rank", "start_ns", "end_ns").get(most),
            calls=pl.len(),
        )
    )
    return table.select(pl.col(name).cast(kind) for name, kind in BUCKET_COLUMNS.items()).sort(
        "bucket"
    )


def _each(calls: pl.DataFrame, phases: Phases) -> pl.DataFrame:
    """Add to each call how long it was hidden, waited and transferred, where its rank's time is cut."""
    calls = calls.sort("process", maintain_order=True)
    start, end, last = (
        calls[name].to_numpy() for name in ("start_ns", "end_ns", "last_arrival_ns")
    )
    come = np.clip(last, start, end)
    known, (early, late) = np.zeros(len(start), np.bool_), np.zeros((2, len(start)), np.int64)
    for mine, pieces in _of_each_process(calls["process"].to_numpy(), phases):
        known[mine] = True
        early[mine], late[mine] = _own(pieces, start[mine], come[mine], end[mine])
    return calls.with_columns(
        hidden_ns=early + late, wait_ns=come - start - early, transfer_ns=end - come - late
    ).filter(pl.Series(known))


def _of_each_process(
    process: npt.NDArray[np.int32], phases: Phases
) -> Iterator[tuple[slice, Pieces]]:
    """Yield where the calls of each process lie, and its pieces."""
    owners = phases.pieces.steps["process"].to_numpy()
    for pieces, offset in phases.pieces.cut:
        first, last = np.searchsorted(process, (owners[offset], owners[offset] + 1)).tolist()
        if first < last:
            yield slice(first, last), pieces


def _own(pieces: Pieces, *moments: Ints) -> Ints:
    """Return a rank's own time between each of the moments and the next of them."""
    first = int(pieces.bounds[0])
    length = np.where(IS_OWN[pieces.category], np.diff(pieces.bounds), 0)
    until = np.concatenate([[0], np.cumsum(length)])
    at = [np.interp(moment - first, pieces.bounds - first, until) for moment in moments]
    return np.asarray(np.rint(np.diff(at, axis=0)), np.int64)
