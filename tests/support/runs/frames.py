"""Hand-made partitions of time: a run whose every nanosecond is known, without a simulator."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES
from tracelens.accounting.phases import TIME_COLUMNS
from tracelens.accounting.pieces import SEGMENT_COLUMNS, PackedPieces, PieceStore, Segments
from tracelens.accounting.spans import Pieces
from tracelens.lod import lanes, residuals
from tracelens.lod.query import Scene
from tracelens.lod.step_times import CategoryTimes
from tracelens.lod.viewport import Window
from tracelens.model.trace import STEP_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MS = 1_000_000
WORK = (("data", 1), ("forward", 4), ("backprop", 8), ("update", 2))


class Run(NamedTuple):
    pieces: Segments
    times: pl.DataFrame
    steps: pl.DataFrame


def run_of(
    ranks: int = 4,
    steps: int = 10,
    late: Mapping[tuple[int, int], int] | None = None,
    origin: int = 0,
) -> Run:
    """Build the partition and the step table of a run.

    Every rank works `WORK` in each step; `late` adds milliseconds to the data phase of a (rank,
    step), for which the others wait before the update.
    """
    late = late or {}
    segments: list[dict[str, Any]] = []
    windows: list[dict[str, Any]] = []
    begin_ns = origin
    for step in range(steps):
        longest = max(late.get((rank, step), 0) for rank in range(ranks))
        for rank in range(ranks):
            lateness_ms = late.get((rank, step), 0)
            data, forward, backprop, update = (ms * MS for _, ms in WORK)
            pieces = [
                ("data", data + lateness_ms * MS),
                ("forward", forward),
                ("backprop", backprop),
                ("wait", (longest - lateness_ms) * MS),
                ("update", update),
            ]
            edges = [begin_ns]
            for _, length in pieces:
                edges.append(edges[-1] + length)
            for (category, _), (start, end) in zip(pieces, pairwise(edges), strict=True):
                if end > start:
                    segments.append(_row(rank, step, start, end, category))
            windows.append(_row(rank, step, begin_ns, edges[-1], "") | {"samples": 32.0})
        begin_ns = edges[-1]
    table = pl.DataFrame(segments, schema=SEGMENT_COLUMNS)
    times = table.group_by("process", "rank", "step", "category").agg(
        ns=(pl.col("end_ns") - pl.col("start_ns")).sum()
    )
    stepped = pl.DataFrame(windows).select(*STEP_COLUMNS).cast(pl.Schema(STEP_COLUMNS))
    stepped = stepped.sort("process", "start_ns")
    return Run(_pieces(table, stepped, steps), times.select(*TIME_COLUMNS), stepped)


def _pieces(table: pl.DataFrame, stepped: pl.DataFrame, steps: int) -> Segments:
    """Cut every rank's time as `phases.run` would."""
    store = PieceStore()
    for process_rows in table.partition_by("process", maintain_order=True):
        pieces = Pieces(
            bounds_ns=np.append(process_rows["start_ns"].to_numpy(), process_rows["end_ns"][-1]),
            window_indices=process_rows["step"].to_numpy(),
            category_codes=process_rows["category"].to_physical().to_numpy().astype(np.int8),
            name_codes=np.full(process_rows.height, -1, np.int32),
            spent_ns=np.zeros((steps, len(CATEGORIES)), np.int64),
            hidden_ns=np.zeros(steps, np.int64),
        )
        store.append(PackedPieces.from_pieces(pieces, pieces.name_codes))
    begins = tuple(range(0, (len(store) + 1) * steps, steps))
    return Segments(store, begins, stepped.select("process", "rank", "step"), ())


def scene_of(
    ranks: int = 4, steps: int = 10, late: Mapping[tuple[int, int], int] | None = None
) -> Scene:
    """Build the timeline's scene of such a run."""
    run = run_of(ranks, steps, late)
    detail = lanes.join_lanes(
        list(lanes.make_worker_lanes(run.pieces, [(rank, rank) for rank in range(ranks)]))
    )
    late_by = residuals.measure(times_of(run.times, range(ranks)))
    coarse = residuals.make_step_lanes(late_by, run.steps, detail.owners)
    ends = run.steps["end_ns"].max()
    assert isinstance(ends, int)
    return Scene(detail, coarse, Window(0, ends), ends // steps)


def times_of(times: pl.DataFrame, ranks: Iterable[int]) -> CategoryTimes:
    """Take the times of a run, a row a rank, step and category."""
    windows = times.select("rank", "step").unique().sort("rank", "step").with_row_index("window")
    rows = times.join(windows, on=["rank", "step"])
    spent = np.zeros((windows.height, len(CATEGORIES)), np.int64)
    spent[rows["window"].to_numpy(), rows["category"].to_physical().to_numpy()] = rows["ns"]
    return CategoryTimes.from_partition(spent, windows, ranks)


def _row(rank: int, step: int, start: int, end: int, category: str) -> dict[str, Any]:
    row = {"process": rank, "rank": rank, "step": step, "start_ns": start, "end_ns": end}
    return row | {"category": category, "name": category}
