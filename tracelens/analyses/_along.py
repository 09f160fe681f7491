"""The critical path cut where its rank, its step or what is done changes: who carries it, with what.

The path runs on one rank at a time, so it has about as many pieces as the time of one rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.analyses._segments import categories

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens.analyses._partition import Pieces
    from tracelens.analyses.phases import Phases

    Ints = npt.NDArray[np.int64]

__all__ = ["CELL_COLUMNS", "SEGMENT_COLUMNS", "cells", "segments"]

MOST_BLOCKS: Final = 2000  # of steps: of a longer run, one stands for some neighbours
SEGMENT_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "category": pl.String(),
    "name": pl.String(),  # of its longest recorded span, null where none
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
}
CELL_COLUMNS: Final[dict[str, pl.DataType]] = {
    "step": pl.Int32(),  # the first of `steps` neighbours
    "steps": pl.Int32(),
    "rank": pl.Int32(),
    "category": pl.String(),
    "ns": pl.Int64(),  # of the path
}
_SAME: Final = ("rank", "step", "category")


def segments(path: pl.DataFrame, phases: Phases) -> pl.DataFrame:
    """Cut the path; in order of time, in `SEGMENT_COLUMNS`."""
    parts = path.partition_by("process", as_dict=True)
    owner = phases.pieces.steps["process"].to_numpy()
    rows = [
        _on_one(parts[key,], pieces, offset, phases)
        for pieces, offset in phases.pieces.cut
        for key in [int(owner[offset])]
        if (key,) in parts and len(pieces.step)
    ]
    if not rows:
        return pl.DataFrame(schema=SEGMENT_COLUMNS)
    table = pl.concat(rows).sort("start_ns")
    longest = (pl.col("end_ns") - pl.col("start_ns")).arg_max()
    joined = table.group_by(pl.struct(_SAME).rle_id().alias("run"), maintain_order=True).agg(
        pl.col(_SAME).first(),
        pl.col("name").get(longest),
        pl.col("start_ns").first(),
        pl.col("end_ns").last(),
    )
    return joined.select(pl.col(name).cast(kind) for name, kind in SEGMENT_COLUMNS.items())


def cells(segments: pl.DataFrame) -> pl.DataFrame:
    """Add the path up by step, rank and category, in `CELL_COLUMNS`."""
    known = segments["step"].unique().sort()
    block = -(-max(known.len(), 1) // MOST_BLOCKS)
    first = known.gather_every(block)
    place = first.search_sorted(segments["step"], side="right") - 1
    sizes = pl.DataFrame({"step": first}).with_columns(
        steps=pl.Series(np.diff([*range(0, known.len(), block), known.len()]), dtype=pl.Int32)
    )
    return (
        segments.with_columns(step=first.gather(place), ns=pl.col("end_ns") - pl.col("start_ns"))
        .group_by(*_SAME)
        .agg(pl.col("ns").sum())
        .join(sizes, on="step")
        .select(pl.col(name).cast(kind) for name, kind in CELL_COLUMNS.items())
        .sort(*_SAME)
    )


def _on_one(path: pl.DataFrame, pieces: Pieces, offset: int, phases: Phases) -> pl.DataFrame:
    """Return the pieces of one process that lie on the path, clipped to it."""
    begins, ends = path["start_ns"].to_numpy(), path["end_ns"].to_numpy()
    which, row = _met(pieces.bounds, begins, ends)
    start = np.maximum(pieces.bounds[which], begins[row])
    end = np.minimum(pieces.bounds[which + 1], ends[row])
    step = pieces.step[which] + offset
    return (
        phases.pieces.steps.select("rank", "step")[step]
        .with_columns(
            category=categories(pieces.category[which]).cast(pl.String),
            name=phases.pieces.names(pieces.name[which]).cast(pl.String),
            start_ns=start,
            end_ns=end,
        )
        .filter(pl.col("end_ns") > pl.col("start_ns"))
    )


def _met(bounds: Ints, begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return which pieces lie in which intervals: (piece, interval), every pair that touches."""
    last = len(bounds) - 2
    first = np.clip(np.searchsorted(bounds, begins, side="right") - 1, 0, last)
    after = np.clip(np.searchsorted(bounds, ends), 1, last + 1)
    count = np.maximum(after - first, 0)
    row = np.repeat(np.arange(len(begins)), count)
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return first[row] + within, row
