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

OWN: Final = [CATEGORIES.index(name) for name in OWN_CATEGORIES]
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
    parts = [pl.DataFrame(schema=_EACH), *_each(calls, phases)]
    most = (pl.col("wait_ns") + pl.col("transfer_ns")).arg_max()
    table = (
        pl.concat(parts)
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


_EACH: Final[dict[str, pl.DataType]] = {
    "bucket": pl.Int32(),
    "rank": pl.Int32(),
    "bytes": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "hidden_ns": pl.Int64(),
    "wait_ns": pl.Int64(),
    "transfer_ns": pl.Int64(),
}


def _each(calls: pl.DataFrame, phases: Phases) -> Iterator[pl.DataFrame]:
    """Yield the calls of each process."""
    owners = phases.pieces.steps["process"]
    by_process = calls.partition_by("process", as_dict=True)
    for pieces, offset in phases.pieces.cut:
        mine = by_process.get((owners[offset],))
        if mine is not None:
            yield _of(mine, pieces)


def _of(calls: pl.DataFrame, pieces: Pieces) -> pl.DataFrame:
    start, end, last = (
        calls[name].to_numpy() for name in ("start_ns", "end_ns", "last_arrival_ns")
    )
    come = np.clip(last, start, end)
    early, late = _own(pieces, start, come), _own(pieces, come, end)
    return calls.select(
        "bucket",
        "rank",
        "bytes",
        "start_ns",
        "end_ns",
        hidden_ns=pl.Series(early + late),
        wait_ns=pl.Series(come - start - early),
        transfer_ns=pl.Series(end - come - late),
    )


def _own(pieces: Pieces, begin: Ints, end: Ints) -> Ints:
    """Return a rank's own time between moments."""
    first = int(pieces.bounds[0])
    length = np.where(np.isin(np.asarray(pieces.category), OWN), np.diff(pieces.bounds), 0)
    until = np.concatenate([[0], np.cumsum(length)])
    at = [np.interp(moment - first, pieces.bounds - first, until) for moment in (begin, end)]
    return np.asarray(np.rint(at[1] - at[0]), np.int64)
