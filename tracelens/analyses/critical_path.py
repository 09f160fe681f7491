"""The critical path: the one chain of work and waiting across ranks that is as long as the job.

Shortening anything else changes nothing. It is walked backwards over the exact partition of every
rank's time, from the job's end always to what had to be over before: on a rank that is what it did
before; where it stood waiting for the last rank of a collective, it is that rank, at the moment when it
arrived. So its parts, by rank and category, sum to the job; the slack of each rank is reported beside it
(`replay/slack.py`). Where clocks are uncertain by more than a wait, either rank may have been last.

It is also cut where its rank, its step or what is done changes, and drawn as a line across ranks: where
it has more stretches than a picture has room for, time is cut into equal bins, and the process with
most of the path stands for a bin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.partition import CATEGORIES, UNKNOWN
from tracelens.accounting.phases import after_steps, job_ns
from tracelens.accounting.pieces import categories, covered_before
from tracelens.model.calls import NEVER
from tracelens.replay import slack

if TYPE_CHECKING:
    from tracelens.accounting.phases import Phases
    from tracelens.accounting.pieces import WorkerPieces
    from tracelens.arrays import Array, Int8s, Int32s, Ints
    from tracelens.model.findings import Finding
    from tracelens.model.trace import Trace

__all__ = [
    "CELL_COLUMNS",
    "MOST_STRETCHES",
    "PATH_COLUMNS",
    "PATH_SEGMENT_COLUMNS",
    "SHARE_COLUMNS",
    "CriticalPath",
    "Lane",
    "Lanes",
    "path_cells",
    "path_segments",
    "path_stretches",
    "run",
    "stretches_within",
    "walk_path",
]


MOST_ROWS: Final = 64  # in a report: the largest
MOST_SEGMENTS: Final = 256
SHARE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "category": pl.String(),  # of the partition, or outside: before a rank's first step
    "ns": pl.Int64(),
    "share": pl.Float64(),  # of the path
}


@dataclass(frozen=True)
class CriticalPath:
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
            "critical_path": self.shares.head(MOST_ROWS),
            "slack": self.slack.sort("slack_ns", "rank").head(MOST_ROWS),
        }


def run(trace: Trace, phases: Phases) -> CriticalPath:
    """Walk the path and measure what ranks can spare; neither is known where ranks were left out."""
    lanes = Lanes(trace, phases)
    path = pl.DataFrame(schema=PATH_COLUMNS) if trace.parted else walk_path(lanes)
    ranks = dict(trace.workers.select("process", "rank").iter_rows())
    along = path_segments(path, phases)
    lasted = pl.col("end_ns") - pl.col("start_ns")
    return CriticalPath(
        path=path,
        shares=_shares(trace, path, lanes, ranks, job_ns(trace)),
        slack=pl.DataFrame(schema=slack.SLACK_COLUMNS)
        if trace.parted
        else slack.measure_slack(trace),
        cells=path_cells(along),
        longest=along.top_k(MOST_SEGMENTS, by=lasted).sort(lasted, descending=True),
        stretches=path_stretches(path),
    )


def _shares(
    trace: Trace, path: pl.DataFrame, lanes: Lanes, ranks: dict[int, int], job: int
) -> pl.DataFrame:
    """Add the path up by rank and category, without the time of steps that were left out as asked."""
    rows = []
    for (process,), part in path.partition_by("process", as_dict=True).items():
        lane = lanes.of(int(process))
        spent = lane.spent(part["end_ns"].to_numpy()) - lane.spent(part["start_ns"].to_numpy())
        total = spent.sum(axis=0)
        total[UNKNOWN] -= _left_out(trace.steps.filter(process=process), part)
        rows += [
            (ranks.get(int(process)), CATEGORIES[code], int(total[code]), 0.0)
            for code in np.flatnonzero(total)
        ]
    outside = job - sum(ns for _, _, ns, _ in rows)
    if outside > 0 and not path.is_empty():
        rows.append((ranks.get(path["process"][-1]), "outside", outside, 0.0))
    table = pl.DataFrame(rows, schema=SHARE_COLUMNS, orient="row")
    share = pl.col("ns") / pl.lit(max(job, 1))
    return table.with_columns(share=share).sort(
        "ns", "rank", "category", descending=[True, False, False]
    )


def _left_out(steps: pl.DataFrame, path: pl.DataFrame) -> int:
    """Return how much of a rank's part of the path is between steps that were kept."""
    apart = after_steps(steps).to_numpy()
    gaps = np.flatnonzero(apart)
    begins = steps["end_ns"].to_numpy()[gaps]
    until, since = (
        covered_before(begins, begins + apart[gaps], path[name].to_numpy())
        for name in ("end_ns", "start_ns")
    )
    return round(float((until - since).sum()))


WAIT: Final = CATEGORIES.index("wait")
PATH_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
}


@dataclass(frozen=True)
class Lane:
    """One rank's time: boundaries of its pieces and their categories, and its waits for other ranks.

    `wait_end` is ascending; `to` is the process that ended each wait, by coming.
    """

    bounds: Ints
    category: Int8s
    wait_end: Ints
    to: Ints

    def spent(self, moments: Ints) -> Ints:
        """Return how much of each category had passed at some moments, [moment, category]."""
        length = np.diff(self.bounds)
        total = np.zeros((len(moments), len(CATEGORIES)), np.int64)
        inside = np.clip(moments, self.bounds[0], self.bounds[-1])
        piece = np.minimum(np.searchsorted(self.bounds, inside, side="right") - 1, len(length) - 1)
        for code in np.unique(self.category):
            mine = self.category == code
            before = np.concatenate([[0], np.cumsum(np.where(mine, length, 0))])
            part = np.where(mine[piece], inside - self.bounds[piece], 0)
            total[:, code] = before[piece] + part
        return total


class Lanes:
    """The lanes of all workers that recorded a step; each is made when the walk reaches it."""

    def __init__(self, trace: Trace, phases: Phases) -> None:
        self._calls = trace.calls
        self._process_of = dict(trace.workers.select("rank", "process").iter_rows())
        self._all = phases.pieces
        self._place = {process: place for place, process in enumerate(phases.pieces.processes)}
        self._made: dict[int, Lane] = {}

    def __contains__(self, process: int) -> bool:
        """Return whether a process recorded steps."""
        return process in self._place

    @property
    def last(self) -> int | None:
        """The process that ends last; null without any."""
        ends = {pieces.process: int(pieces.bounds[-1]) for pieces in self._all}
        return max(ends, key=lambda process: ends[process]) if ends else None

    def of(self, process: int) -> Lane:
        """Return a process's lane."""
        if process not in self._made:
            self._made[process] = self._make(process)
        return self._made[process]

    def _make(self, process: int) -> Lane:
        pieces = self._all.of_worker(self._place[process])
        moment, last = self._awaited(process)
        ends, begins = _waits(pieces.bounds, pieces.category)
        if not len(moment):
            return Lane(pieces.bounds, pieces.category, ends[:0], ends[:0])
        row = np.searchsorted(moment, ends, side="right") - 1
        known = (row >= 0) & (moment[np.maximum(row, 0)] > begins)
        arrived = [self._process_of.get(rank, -1) for rank in last[np.maximum(row, 0)].tolist()]
        to = np.where(known, np.array(arrived, np.int64), -1)
        kept = (to >= 0) & (to != process)
        return Lane(pieces.bounds, pieces.category, ends[kept], to[kept])

    def _awaited(self, process: int) -> tuple[Ints, Int32s]:
        """Return when others came for whom a process waited, in order, and their ranks."""
        moments, ranks = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
        for grid in self._calls:
            for column in np.flatnonzero(grid.processes == process).tolist():
                there = (grid.last_ns != NEVER) & (grid.start_ns[:, column] != NEVER)
                waited = np.flatnonzero(there & (grid.wait_of(column) > 0))
                moments.append(grid.last_ns[waited])
                ranks.append(grid.last_rank[waited])
        moment = np.concatenate(moments)
        order = np.argsort(moment, kind="stable")
        return moment[order], np.concatenate(ranks)[order]


def _waits(bounds: Ints, category: Array) -> tuple[Ints, Ints]:
    """Return ends and begins of what stands waiting, neighbours joined."""
    waiting = np.concatenate([[False], np.asarray(category) == WAIT, [False]])
    begins, ends = (
        np.flatnonzero(~waiting[:-1] & waiting[1:]),
        np.flatnonzero(waiting[:-1] & ~waiting[1:]),
    )
    return bounds[ends], bounds[begins]


def walk_path(lanes: Lanes) -> pl.DataFrame:
    """Return the path's intervals, the last first; they touch, from the job's end to a rank's begin."""
    process = lanes.last
    if process is None:
        return pl.DataFrame(schema=PATH_COLUMNS)
    now = int(lanes.of(process).bounds[-1])
    rows = []
    while True:
        lane = lanes.of(process)
        wait = int(np.searchsorted(lane.wait_end, now)) - 1
        if wait < 0 or int(lane.to[wait]) not in lanes:
            rows.append((process, min(int(lane.bounds[0]), now), now))
            return pl.DataFrame(rows, schema=PATH_COLUMNS, orient="row")
        reached = int(lane.wait_end[wait])  # earlier than `now`, so the walk ends
        rows.append((process, reached, now))
        process, now = int(lane.to[wait]), reached


MOST_STEP_BLOCKS: Final = 2000  # of steps: of a longer run, one stands for some neighbours
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


def path_segments(path: pl.DataFrame, phases: Phases) -> pl.DataFrame:
    """Cut the path; in order of time, in `PATH_SEGMENT_COLUMNS`."""
    path = path.sort("process", maintain_order=True)
    process, begins, ends = (path[name].to_numpy() for name in ("process", "start_ns", "end_ns"))
    met = [
        _on_one(pieces, begins[local], ends[local])
        for pieces in phases.pieces
        for owner in [pieces.process]
        for local in [slice(*np.searchsorted(process, (owner, owner + 1)).tolist())]
        if local.start < local.stop and len(pieces.step)
    ]
    if not met:
        return pl.DataFrame(schema=PATH_SEGMENT_COLUMNS)
    table = _in_order_of_time([np.concatenate(part) for part in zip(*met, strict=True)], phases)
    longest = (pl.col("end_ns") - pl.col("start_ns")).arg_max()
    joined = table.group_by(pl.struct(_CELL).rle_id().alias("run"), maintain_order=True).agg(
        pl.col(_CELL).first(),
        pl.col("name").get(longest),
        pl.col("start_ns").first(),
        pl.col("end_ns").last(),
    )
    return joined.select(pl.col(name).cast(kind) for name, kind in PATH_SEGMENT_COLUMNS.items())


def _in_order_of_time(met: list[Ints], phases: Phases) -> pl.DataFrame:
    """Put pieces on the path in order of time."""
    row, category, name, start, end = met
    of_step = phases.pieces.steps.select("rank", "step")[row]
    return of_step.with_columns(
        category=categories(category).cast(pl.String),
        name=phases.pieces.names(name).cast(pl.String),
        start_ns=start,
        end_ns=end,
    ).sort("start_ns")


def path_cells(segments: pl.DataFrame) -> pl.DataFrame:
    """Add the path up by step, rank and category, in `CELL_COLUMNS`."""
    known = segments["step"].unique().sort()
    block = -(-max(known.len(), 1) // MOST_STEP_BLOCKS)
    first = known.gather_every(block)
    place = first.search_sorted(segments["step"], side="right") - 1
    sizes = pl.DataFrame({"step": first}).with_columns(
        steps=pl.Series(np.diff([*range(0, known.len(), block), known.len()]), dtype=pl.Int32)
    )
    return (
        segments.with_columns(step=first.gather(place), ns=pl.col("end_ns") - pl.col("start_ns"))
        .group_by(*_CELL)
        .agg(pl.col("ns").sum())
        .join(sizes, on="step")
        .select(pl.col(name).cast(kind) for name, kind in CELL_COLUMNS.items())
        .sort(*_CELL)
    )


def _on_one(pieces: WorkerPieces, begins: Ints, ends: Ints) -> tuple[Ints, ...]:
    """Return the pieces of one process on the path, clipped: row, category, name, start, end."""
    which, row = _overlapping(pieces.bounds, begins, ends)
    start = np.maximum(pieces.bounds[which], begins[row])
    end = np.minimum(pieces.bounds[which + 1], ends[row])
    there = end > start
    which = which[there]
    row_of_step = pieces.step[which].astype(np.int64) + pieces.offset
    category, name = pieces.category[which].astype(np.int64), pieces.name[which].astype(np.int64)
    return row_of_step, category, name, start[there], end[there]


def _overlapping(bounds: Ints, begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return which pieces lie in which intervals: (piece, interval), every pair that touches."""
    last = len(bounds) - 2
    first = np.clip(np.searchsorted(bounds, begins, side="right") - 1, 0, last)
    after = np.clip(np.searchsorted(bounds, ends), 1, last + 1)
    count = np.maximum(after - first, 0)
    row = np.repeat(np.arange(len(begins)), count)
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return first[row] + within, row


MOST_STRETCHES: Final = 1 << 16  # of a run


def path_stretches(path: pl.DataFrame) -> pl.DataFrame:
    """Return the stretches of a whole path, the first first, in `PATH_COLUMNS`."""
    if path.is_empty():
        return path
    ordered = path.sort("start_ns")
    return stretches_within(
        ordered, int(ordered["start_ns"][0]), int(ordered["end_ns"][-1]), MOST_STRETCHES
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
            "process": stretches["process"].to_numpy()[_before(starts, bounds[:-1])],
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
