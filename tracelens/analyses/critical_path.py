"""The critical path: the one chain of work and waiting across ranks that is as long as the job.

Shortening anything else changes nothing. It is walked backwards over the exact partition of every
rank's time (`replay/path.py`), so its parts, by rank and category, sum to the job. The slack of each
rank is reported beside it (`replay/slack.py`). Where clocks are uncertain by more than a wait, either
rank may have been last.

It is also cut where its rank, its step or what is done changes, and drawn as a line across ranks: where
it has more stretches than a picture has room for, time is cut into equal bins, and the process with
most of the path stands for a bin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES, UNINSTRUMENTED
from tracelens.accounting.phases import after_steps, job_ns
from tracelens.accounting.pieces import covered_before
from tracelens.model.shown import Shown
from tracelens.replay.path import PATH_COLUMNS, Lanes, walk_path
from tracelens.replay.slack import measure_slack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.pieces import Segments
    from tracelens.arrays import Ints
    from tracelens.facts import Facts
    from tracelens.model.findings import Finding
    from tracelens.model.trace import Trace

__all__ = [
    "CELL_COLUMNS",
    "PATH_COLUMNS",
    "PATH_SEGMENT_COLUMNS",
    "SHARE_COLUMNS",
    "CriticalPath",
    "path_cells",
    "path_segments",
    "path_stretches",
    "run",
    "stretches_within",
]

MAX_PARTS_SHOWN: Final = 64  # rows: a report has no more parts of the path [policy]
MAX_RANKS_SHOWN: Final = 64  # rows: a report has the slack of no more ranks [policy]
# pieces: no more of the longest ones on the path are in the result [policy]
MAX_LONGEST_PIECES: Final = 256
MAX_STEPS_OF_CELLS: Final = 2000  # steps: one of a longer run stands for some neighbours [policy]
# stretches: a path with more is drawn by equal parts of time [policy]
MAX_STRETCHES_DRAWN: Final = 1 << 16

SHARE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "category": pl.String(),  # of the partition, or outside: before a rank's first step
    "ns": pl.Int64(),
    "share": pl.Float64(),  # of the path
}


@dataclass(frozen=True, eq=False)
class CriticalPath(Shown):
    """`path` holds its intervals, the last first; `shares` sums to 1; `slack` has a row a rank.

    `cells` adds it up by step, rank and category, `longest` holds its longest pieces
    (`critical_path.py`); `stays` are its intervals as a line to be drawn, of a bounded number
    (`critical_path.py`).
    """

    path: pl.DataFrame
    shares: pl.DataFrame
    slack: pl.DataFrame
    cells: pl.DataFrame
    longest: pl.DataFrame
    stretches: pl.DataFrame
    findings: tuple[Finding, ...] = ()

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """What a report shows: of ranks those that can spare least."""
        return {
            "critical_path": self.shares.head(MAX_PARTS_SHOWN),
            "slack": self.slack.sort("slack_ns", "rank").head(MAX_RANKS_SHOWN),
        }


def run(facts: Facts) -> CriticalPath:
    """Walk the path and measure what ranks can spare; neither is known where ranks were left out."""
    trace, phases = facts.trace, facts.phases
    parted = bool(trace.parted)
    path = pl.DataFrame(schema=PATH_COLUMNS) if parted else walk_path(Lanes(trace, phases))
    on_path = _on_path(path, phases.pieces)
    along = path_segments(on_path)
    models = facts.replay.build_models()
    length_ns = (trace.steps["end_ns"] - trace.steps["start_ns"]).median()
    return CriticalPath(
        path=path,
        shares=_shares(path, on_path, trace),
        slack=measure_slack(models, length_ns if isinstance(length_ns, float) else 0.0),
        cells=path_cells(along),
        longest=along.top_k(MAX_LONGEST_PIECES, by=_LASTED).sort(_LASTED, descending=True),
        stretches=path_stretches(path),
    )


def _shares(path: pl.DataFrame, on_path: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Add the path up by rank and category, without the time of steps that were left out as asked."""
    job, uninstrumented = job_ns(trace), CATEGORIES[UNINSTRUMENTED]
    spent = on_path.select("rank", pl.col("category").cast(pl.String), ns=_LASTED)
    left_out = [(rank, uninstrumented, -ns) for rank, ns in _left_out(trace.steps, path)]
    parts = (spent, pl.DataFrame(left_out, schema=spent.schema, orient="row"))
    table = pl.concat(parts).group_by("rank", "category").agg(pl.col("ns").sum())
    outside = job - int(table["ns"].sum())
    if outside > 0 and not path.is_empty():
        ranks = dict(trace.workers.select("process", "rank").iter_rows())
        rest = pl.DataFrame(
            [(ranks.get(path["process"][-1]), "outside", outside)], table.schema, orient="row"
        )
        table = table.vstack(rest)
    share = pl.col("ns") / pl.lit(max(job, 1))
    return (
        table.filter(pl.col("ns") != 0)
        .with_columns(share=share)
        .sort("ns", "rank", "category", descending=[True, False, False])
    )


def _left_out(steps: pl.DataFrame, path: pl.DataFrame) -> Iterator[tuple[int, int]]:
    """Yield how much of each rank's part of the path is between steps that were kept."""
    lasting = steps.with_columns(apart=after_steps(steps)).filter(pl.col("apart") > 0)
    for (process, rank), gaps in lasting.partition_by("process", "rank", as_dict=True).items():
        begins = gaps["end_ns"].to_numpy()
        mine = path.filter(process=process)
        until, since = (
            covered_before(begins, begins + gaps["apart"].to_numpy(), mine[name].to_numpy())
            for name in ("end_ns", "start_ns")
        )
        yield rank, round(float((until - since).sum()))


PATH_SEGMENT_COLUMNS: Final[dict[str, pl.DataType]] = {
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
_CELL: Final = ("rank", "step", "category")
_LASTED: Final = pl.col("end_ns") - pl.col("start_ns")


def _on_path(path: pl.DataFrame, pieces: Segments) -> pl.DataFrame:
    """Return the pieces on the path, clipped to it, in order of time, in `SEGMENT_COLUMNS`."""
    place = {process: at for at, process in enumerate(pieces.processes)}
    met, intervals = [], [path.clear()]
    for (process,), part in path.partition_by("process", as_dict=True).items():
        one = pieces.of_worker(place[process])
        if not len(one.category):
            continue
        which, row = _overlapping(one.bounds, *part.select("start_ns", "end_ns").to_numpy().T)
        met.append((one, which))
        intervals.append(part[row])
    within = pl.concat(intervals)
    return (
        pieces.frame_of(met)
        .with_columns(
            pl.max_horizontal("start_ns", within["start_ns"]),
            pl.min_horizontal("end_ns", within["end_ns"]),
        )
        .filter(pl.col("start_ns") < pl.col("end_ns"))
        .sort("start_ns")
    )


def path_segments(on_path: pl.DataFrame) -> pl.DataFrame:
    """Join neighbours of a rank, step and category, in `PATH_SEGMENT_COLUMNS`."""
    return (
        on_path.group_by(pl.struct(_CELL).rle_id().alias("run"), maintain_order=True)
        .agg(
            pl.col(*_CELL, "start_ns").first(),
            pl.col("end_ns").last(),
            pl.col("name").get(_LASTED.arg_max()),
        )
        .select(pl.col(name).cast(kind) for name, kind in PATH_SEGMENT_COLUMNS.items())
    )


def path_cells(segments: pl.DataFrame) -> pl.DataFrame:
    """Add the path up by step, rank and category, in `CELL_COLUMNS`."""
    steps = segments.select(pl.col("step").unique().sort())
    block = pl.int_range(pl.len()) // -(-max(steps.height, 1) // MAX_STEPS_OF_CELLS)
    blocks = steps.with_columns(
        first=pl.col("step").first().over(block), steps=pl.len().over(block)
    )
    return (
        segments.join(blocks, on="step")
        .group_by("steps", "rank", "category", step="first")
        .agg(ns=_LASTED.sum())
        .select(pl.col(name).cast(kind) for name, kind in CELL_COLUMNS.items())
        .sort(*_CELL)
    )


def _overlapping(bounds: Ints, begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return which pieces lie in which intervals: (piece, interval), every pair that touches."""
    last = len(bounds) - 2
    first = np.clip(np.searchsorted(bounds, begins, side="right") - 1, 0, last)
    after = np.clip(np.searchsorted(bounds, ends), 1, last + 1)
    count = np.maximum(after - first, 0)
    row = np.repeat(np.arange(len(begins)), count)
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return first[row] + within, row


def path_stretches(path: pl.DataFrame) -> pl.DataFrame:
    """Return the stretches of a whole path, the first first, in `PATH_COLUMNS`."""
    if path.is_empty():
        return path
    ordered = path.sort("start_ns")
    return stretches_within(
        ordered, int(ordered["start_ns"][0]), int(ordered["end_ns"][-1]), MAX_STRETCHES_DRAWN
    )


def stretches_within(
    stretches: pl.DataFrame, start_ns: int, end_ns: int, most: int
) -> pl.DataFrame:
    """Return at most so many stretches of a stretch of time, in order of time."""
    inside = stretches.filter(pl.col("end_ns") > start_ns, pl.col("start_ns") < end_ns)
    cut = inside.with_columns(
        pl.col("start_ns").clip(lower_bound=pl.lit(start_ns)),
        pl.col("end_ns").clip(upper_bound=pl.lit(end_ns)),
    )
    return cut if cut.height <= most else _by_bin(cut, most)


def _by_bin(stretches: pl.DataFrame, bins: int) -> pl.DataFrame:
    """Let the process with most of the path stand for each of some equal parts of time."""
    starts, end = stretches["start_ns"].to_numpy(), int(stretches["end_ns"][-1])
    edges = np.linspace(starts[0], end, bins + 1).round().astype(np.int64)
    bounds = np.union1d(starts, edges)
    pieces = pl.DataFrame(
        {
            "bin": np.searchsorted(edges, bounds[:-1], side="right") - 1,
            "process": stretches["process"].to_numpy()[
                np.searchsorted(starts, bounds[:-1], side="right") - 1
            ],
            "ns": np.diff(bounds),
        }
    )
    return (
        pieces.group_by("bin", "process")
        .agg(pl.col("ns").sum())
        .sort("bin", "ns", "process", descending=[False, True, False])
        .unique("bin", keep="first", maintain_order=True)
        .with_columns(start_ns=pl.lit(pl.Series(edges[:-1])).gather(pl.col("bin")))
        .filter(pl.col("process").ne_missing(pl.col("process").shift()))
        .with_columns(end_ns=pl.col("start_ns").shift(-1).fill_null(end))
        .select(pl.col(name).cast(kind) for name, kind in PATH_COLUMNS.items())
    )
