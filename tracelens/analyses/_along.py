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
    path = path.sort("process", maintain_order=True)
    process, begins, ends = (path[name].to_numpy() for name in ("process", "start_ns", "end_ns"))
    owner = phases.pieces.steps["process"].to_numpy()
    met = [
        _on_one(pieces, offset, begins[here], ends[here])
        for pieces, offset in phases.pieces.cut
        for here in [slice(*np.searchsorted(process, (owner[offset], owner[offset] + 1)).tolist())]
        if here.start < here.stop and len(pieces.step)
    ]
    if not met:
        return pl.DataFrame(schema=SEGMENT_COLUMNS)
    table = _table([np.concatenate(part) for part in zip(*met, strict=True)], phases)
    longest = (pl.col("end_ns") - pl.col("start_ns")).arg_max()
    joined = table.group_by(pl.struct(_SAME).rle_id().alias("run"), maintain_order=True).agg(
        pl.col(_SAME).first(),
        pl.col("name").get(longest),
        pl.col("start_ns").first(),
        pl.col("end_ns").last(),
    )
    return joined.select(pl.col(name).cast(kind) for name, kind in SEGMENT_COLUMNS.items())


def _table(met: list[Ints], phases: Phases) -> pl.DataFrame:
    """Put pieces on the path in order of time."""
    row, category, name, start, end = met
    of_step = phases.pieces.steps.select("rank", "step")[row]
    return of_step.with_columns(
        category=categories(category).cast(pl.String),
        name=phases.pieces.names(name).cast(pl.String),
        start_ns=start,
        end_ns=end,
    ).sort("start_ns")


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


def _on_one(pieces: Pieces, offset: int, begins: Ints, ends: Ints) -> tuple[Ints, ...]:
    """Return the pieces of one process on the path, clipped: row, category, name, start, end."""
    which, row = _met(pieces.bounds, begins, ends)
    start = np.maximum(pieces.bounds[which], begins[row])
    end = np.minimum(pieces.bounds[which + 1], ends[row])
    there = end > start
    which = which[there]
    row_of_step = pieces.step[which].astype(np.int64) + offset
    category, name = pieces.category[which].astype(np.int64), pieces.name[which].astype(np.int64)
    return row_of_step, category, name, start[there], end[there]


def _met(bounds: Ints, begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return which pieces lie in which intervals: (piece, interval), every pair that touches."""
    last = len(bounds) - 2
    first = np.clip(np.searchsorted(bounds, begins, side="right") - 1, 0, last)
    after = np.clip(np.searchsorted(bounds, ends), 1, last + 1)
    count = np.maximum(after - first, 0)
    row = np.repeat(np.arange(len(begins)), count)
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return first[row] + within, row
