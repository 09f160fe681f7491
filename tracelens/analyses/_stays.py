"""The critical path as a line across ranks: where it stays, from when to when, in few pieces.

A path changes ranks with every collective that somebody is late to; a picture has room for some hundred
changes. Where there are more, time is cut into equal bins, and the process with most of the path stands
for a bin: the last of many quick changes is not told from the first, who carries it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.analyses._path import PATH_COLUMNS

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

__all__ = ["MOST_KEPT", "all_of", "within"]

MOST_KEPT: Final = 1 << 16  # of a run


def all_of(path: pl.DataFrame) -> pl.DataFrame:
    """Return the stays of a whole path, the first first, in `PATH_COLUMNS`."""
    if path.is_empty():
        return path
    ordered = path.sort("start_ns")
    return within(ordered, int(ordered["start_ns"][0]), int(ordered["end_ns"][-1]), MOST_KEPT)


def within(stays: pl.DataFrame, start_ns: int, end_ns: int, most: int) -> pl.DataFrame:
    """Return at most so many stays of a stretch of time; `stays` in order of time."""
    inside = stays.filter(pl.col("end_ns") > start_ns, pl.col("start_ns") < end_ns)
    cut = inside.with_columns(
        pl.col("start_ns").clip(lower_bound=pl.lit(start_ns)),
        pl.col("end_ns").clip(upper_bound=pl.lit(end_ns)),
    )
    return cut if cut.height <= most else _by_bin(cut, most)


def _by_bin(stays: pl.DataFrame, bins: int) -> pl.DataFrame:
    """Let the process with most of the path stand for each of some equal parts of time."""
    starts, end = stays["start_ns"].to_numpy(), int(stays["end_ns"][-1])
    edges = np.linspace(starts[0], end, bins + 1).round().astype(np.int64)
    bounds = np.union1d(starts, edges)
    pieces = pl.DataFrame(
        {
            "bin": np.searchsorted(edges, bounds[:-1], side="right") - 1,
            "process": stays["process"].to_numpy()[_before(starts, bounds[:-1])],
            "ns": np.diff(bounds),
        }
    )
    most = (
        pieces.group_by("bin", "process")
        .agg(pl.col("ns").sum())
        .sort("bin", "ns", "process", descending=[False, True, False])
        .unique("bin", keep="first", maintain_order=True)
    )
    begins = most.with_columns(start_ns=pl.lit(pl.Series(edges[:-1])).gather(pl.col("bin")))
    return _joined(begins, end)


def _joined(begins: pl.DataFrame, end: int) -> pl.DataFrame:
    """Join neighbours on the same process."""
    changed = pl.col("process") != pl.col("process").shift()
    first = begins.filter(changed.fill_null(value=True))
    table = first.with_columns(end_ns=pl.col("start_ns").shift(-1).fill_null(end))
    return table.select(pl.col(name).cast(kind) for name, kind in PATH_COLUMNS.items())


def _before(starts: Ints, moments: Ints) -> Ints:
    return np.searchsorted(starts, moments, side="right") - 1
