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
from tracelens.accounting.pieces import categories, covered_before
from tracelens.model.display import DisplayMixin
from tracelens.replay.path import PATH_COLUMNS, Lanes, walk_path
from tracelens.replay.slack import measure_slack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.pieces import Segments, WorkerPieces
    from tracelens.arrays import Array, Flags, Ints
    from tracelens.facts import Facts
    from tracelens.model.findings import Finding
    from tracelens.model.trace import Trace

__all__ = ["CriticalPath", "path_cells", "path_stretches", "run", "stretches_within"]

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
class CriticalPath(DisplayMixin):
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
    pieces = _on_path(path, phases.pieces)
    along = path_segments(pieces, phases.pieces)
    lasted = pl.col("end_ns") - pl.col("start_ns")
    models = facts.replay.build_models()
    length_ns = (trace.steps["end_ns"] - trace.steps["start_ns"]).median()
    return CriticalPath(
        path=path,
        shares=_shares(path, pieces, phases.pieces, trace),
        slack=measure_slack(models, length_ns if isinstance(length_ns, float) else 0.0),
        cells=path_cells(along),
        longest=along.top_k(MAX_LONGEST_PIECES, by=lasted).sort(lasted, descending=True),
        stretches=path_stretches(path),
    )


def _shares(path: pl.DataFrame, on_path: _OnPath, pieces: Segments, trace: Trace) -> pl.DataFrame:
    """Add the path up by rank and category, without the time of steps that were left out as asked."""
    ranks, job = dict(trace.workers.select("process", "rank").iter_rows()), job_ns(trace)
    worker = np.searchsorted(pieces.begins, on_path.row, side="right") - 1
    cells = worker * len(CATEGORIES) + on_path.category
    lasted, size = on_path.end_ns - on_path.start_ns, len(pieces) * len(CATEGORIES)
    total = np.bincount(cells, lasted, minlength=size).astype(np.int64)
    total = total.reshape(len(pieces), len(CATEGORIES))
    for process, ns in _left_out(trace.steps, path):
        total[pieces.processes.index(process), UNINSTRUMENTED] -= ns
    rows = [
        (ranks.get(pieces.processes[place]), CATEGORIES[code], int(total[place, code]), 0.0)
        for place, code in np.argwhere(total).tolist()
    ]
    outside = job - sum(ns for _, _, ns, _ in rows)
    if outside > 0 and not path.is_empty():
        rows.append((ranks.get(path["process"][-1]), "outside", outside, 0.0))
    table = pl.DataFrame(rows, schema=SHARE_COLUMNS, orient="row")
    share = pl.col("ns") / pl.lit(max(job, 1))
    return table.with_columns(share=share).sort(
        "ns", "rank", "category", descending=[True, False, False]
    )


def _left_out(steps: pl.DataFrame, path: pl.DataFrame) -> Iterator[tuple[int, int]]:
    """Yield how much of each process's part of the path is between steps that were kept."""
    lasting = steps.with_columns(apart=after_steps(steps)).filter(pl.col("apart") > 0)
    for (process,), gaps in lasting.partition_by("process", as_dict=True).items():
        begins = gaps["end_ns"].to_numpy()
        mine = path.filter(process=process)
        until, since = (
            covered_before(begins, begins + gaps["apart"].to_numpy(), mine[name].to_numpy())
            for name in ("end_ns", "start_ns")
        )
        yield process, round(float((until - since).sum()))


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


@dataclass(frozen=True, eq=False)
class _OnPath:
    """Pieces on the path, clipped to it: rows of `Segments.steps`, categories, names, and times."""

    row: Ints
    category: Ints
    name: Ints
    start_ns: Ints
    end_ns: Ints


def _on_path(path: pl.DataFrame, pieces: Segments) -> _OnPath:
    """Cut the path by the pieces of those that are on it."""
    path = path.sort("process", maintain_order=True)
    process, begins, ends = (path[name].to_numpy() for name in ("process", "start_ns", "end_ns"))
    met: list[tuple[Ints, ...]] = [(np.zeros(0, np.int64),) * 5]
    for place, owner in enumerate(pieces.processes):
        first, after = np.searchsorted(process, (owner, owner + 1)).tolist()
        if first < after and len((one := pieces.of_worker(place)).step):
            met.append(_on_one(one, begins[first:after], ends[first:after]))
    return _OnPath(*(np.concatenate(part) for part in zip(*met, strict=True)))


def path_segments(on_path: _OnPath, pieces: Segments) -> pl.DataFrame:
    """Join neighbours of a rank, step and category; in order of time, in `PATH_SEGMENT_COLUMNS`."""
    order = np.argsort(on_path.start_ns, kind="stable")
    row, category = on_path.row[order], on_path.category[order]
    start, end = on_path.start_ns[order], on_path.end_ns[order]
    rank, step = (pieces.steps[name].to_numpy()[row] for name in ("rank", "step"))
    first = np.flatnonzero(_changes(rank) | _changes(step) | _changes(category))
    longest = _first_longest(end - start, first)
    columns = {
        "rank": rank[first],
        "step": step[first],
        "category": categories(category[first]).cast(pl.String),
        "name": pieces.names(on_path.name[order][longest]).cast(pl.String),
        "start_ns": start[first],
        "end_ns": end[np.append(first[1:], len(end))[: len(first)] - 1],
    }
    return pl.DataFrame(columns, schema=PATH_SEGMENT_COLUMNS)


def _changes(values: Array) -> Flags:
    """Return where a value differs from the one before; the first one does."""
    changes = np.ones(len(values), bool)
    changes[1:] = values[1:] != values[:-1]
    return changes


def _first_longest(length: Ints, first: Ints) -> Ints:
    """Return the place of the (first) longest of each run; `first` are where runs begin."""
    if not len(first):
        return first
    run = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(length))))
    longest = np.flatnonzero(length == np.maximum.reduceat(length, first)[run])
    return longest[_changes(run[longest])]


def path_cells(segments: pl.DataFrame) -> pl.DataFrame:
    """Add the path up by step, rank and category, in `CELL_COLUMNS`."""
    known = segments["step"].unique().sort()
    block = -(-max(known.len(), 1) // MAX_STEPS_OF_CELLS)
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
