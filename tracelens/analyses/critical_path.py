"""The critical path: the one chain of work and waiting across ranks that is as long as the job.

Shortening anything else changes nothing. It is walked backwards over the exact partition of every
rank's time (`replay/path.py`), so its parts, by rank and category, sum to the job. The slack of each
rank is reported with it (`replay/slack.py`). Where clocks are uncertain by more than a wait, either
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
from tracelens.accounting.pieces import covered_before, to_category_names
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
MAX_LONGEST_PIECES: Final = 256  # pieces: no more of the longest on the path are kept [policy]
MAX_STEPS_OF_CELLS: Final = 2000  # steps: one of a longer run stands for some neighbours [policy]
MAX_STRETCHES_DRAWN: Final = 1 << 16  # stretches: more are drawn by equal parts of time [policy]

SHARE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "category": pl.String(),  # of the partition, or outside: before a rank's first step
    "ns": pl.Int64(),
    "share": pl.Float64(),  # of the path
}
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
_LENGTH_NS: Final = pl.col("end_ns") - pl.col("start_ns")


@dataclass(frozen=True, eq=False)
class CriticalPath(DisplayMixin):
    """`path` holds its intervals, the last first; `shares` sums to 1; `slack` has a row a rank.

    `cells` adds it up by step, rank and category, `longest` holds its longest pieces; `stretches` are
    its intervals as a line to be drawn, of a bounded number.
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
    path = pl.DataFrame(schema=PATH_COLUMNS) if trace.parted else walk_path(Lanes(trace, phases))
    pieces = _cut_path(path, phases.pieces)
    segments = path_segments(pieces, phases.pieces)
    models = facts.replay.build_graphs()
    step_ns = trace.steps.select(_LENGTH_NS.median()).item()
    return CriticalPath(
        path=path,
        shares=_sum_shares(path, pieces, phases.pieces, trace),
        slack=measure_slack(models, step_ns if isinstance(step_ns, float) else 0.0),
        cells=path_cells(segments),
        longest=segments.top_k(MAX_LONGEST_PIECES, by=_LENGTH_NS).sort(_LENGTH_NS, descending=True),
        stretches=path_stretches(path),
    )


@dataclass(frozen=True, eq=False)
class _PathPieces:
    """Pieces on the path, clipped to it: rows of `Segments.steps`, categories, names, and times."""

    row: Ints
    category: Ints
    name: Ints
    start_ns: Ints
    end_ns: Ints


def _cut_path(path: pl.DataFrame, pieces: Segments) -> _PathPieces:
    """Cut the path by the pieces of the processes that are on it."""
    path = path.sort("process", maintain_order=True)
    process, begins_ns, ends_ns = path.select("process", "start_ns", "end_ns").to_numpy().T
    cut: list[tuple[Ints, ...]] = [(np.zeros(0, np.int64),) * 5]
    for index, owner in enumerate(pieces.processes):
        rows = slice(*np.searchsorted(process, (owner, owner + 1)).tolist())
        if rows.start < rows.stop and len((worker := pieces.of_worker(index)).step):
            cut.append(_clip_pieces(worker, begins_ns[rows], ends_ns[rows]))
    return _PathPieces(*(np.concatenate(columns) for columns in zip(*cut, strict=True)))


def _clip_pieces(pieces: WorkerPieces, begins_ns: Ints, ends_ns: Ints) -> tuple[Ints, ...]:
    """Return the pieces of one process on the path, clipped: row, category, name, start, end."""
    piece, interval = _find_overlaps(pieces.bounds, begins_ns, ends_ns)
    start_ns = np.maximum(pieces.bounds[piece], begins_ns[interval])
    end_ns = np.minimum(pieces.bounds[piece + 1], ends_ns[interval])
    lasts = end_ns > start_ns
    columns = (values[piece[lasts]].astype(np.int64) for values in (pieces.category, pieces.name))
    row = pieces.step[piece[lasts]].astype(np.int64) + pieces.offset
    return row, *columns, start_ns[lasts], end_ns[lasts]


def _find_overlaps(bounds_ns: Ints, begins_ns: Ints, ends_ns: Ints) -> tuple[Ints, Ints]:
    """Return which pieces are in which intervals: (piece, interval), every pair that touches."""
    last = len(bounds_ns) - 2
    first = np.clip(np.searchsorted(bounds_ns, begins_ns, side="right") - 1, 0, last)
    after = np.clip(np.searchsorted(bounds_ns, ends_ns), 1, last + 1)
    count = np.maximum(after - first, 0)
    interval = np.repeat(np.arange(len(begins_ns)), count)
    offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return first[interval] + offset, interval


def _sum_shares(
    path: pl.DataFrame, path_pieces: _PathPieces, pieces: Segments, trace: Trace
) -> pl.DataFrame:
    """Add the path up by rank and category, without the time of steps that were left out as asked."""
    ranks, length_ns = dict(trace.workers.select("process", "rank").iter_rows()), job_ns(trace)
    worker = np.searchsorted(pieces.begins, path_pieces.row, side="right") - 1
    cells = worker * len(CATEGORIES) + path_pieces.category
    lasted_ns, count = path_pieces.end_ns - path_pieces.start_ns, len(pieces) * len(CATEGORIES)
    total_ns = np.bincount(cells, lasted_ns, minlength=count).astype(np.int64)
    total_ns = total_ns.reshape(len(pieces), len(CATEGORIES))
    for process, ns in _measure_left_out(trace.steps, path):
        total_ns[pieces.processes.index(process), UNINSTRUMENTED] -= ns
    rows = [
        (ranks.get(pieces.processes[index]), CATEGORIES[code], int(total_ns[index, code]), 0.0)
        for index, code in np.argwhere(total_ns).tolist()
    ]
    outside_ns = length_ns - int(total_ns.sum())
    if outside_ns > 0 and not path.is_empty():
        rows.append((ranks.get(path["process"][-1]), "outside", outside_ns, 0.0))
    return (
        pl.DataFrame(rows, schema=SHARE_COLUMNS, orient="row")
        .with_columns(share=pl.col("ns") / pl.lit(max(length_ns, 1)))
        .sort("ns", "rank", "category", descending=[True, False, False])
    )


def _measure_left_out(steps: pl.DataFrame, path: pl.DataFrame) -> Iterator[tuple[int, int]]:
    """Yield how much of each process's part of the path is between steps that were kept, ns."""
    gaps = steps.with_columns(apart=after_steps(steps)).filter(pl.col("apart") > 0)
    for (process,), of_process in gaps.partition_by("process", as_dict=True).items():
        begins_ns = of_process["end_ns"].to_numpy()
        ends_ns = begins_ns + of_process["apart"].to_numpy()
        on_path = path.filter(process=process)
        until_ns, since_ns = (
            covered_before(begins_ns, ends_ns, on_path[name].to_numpy())
            for name in ("end_ns", "start_ns")
        )
        yield process, round(float((until_ns - since_ns).sum()))


def path_segments(path_pieces: _PathPieces, pieces: Segments) -> pl.DataFrame:
    """Join neighbours of a rank, step and category; in order of time, in `PATH_SEGMENT_COLUMNS`."""
    order = np.argsort(path_pieces.start_ns, kind="stable")
    row, category = path_pieces.row[order], path_pieces.category[order]
    start_ns, end_ns = path_pieces.start_ns[order], path_pieces.end_ns[order]
    rank, step = (pieces.steps[name].to_numpy()[row] for name in ("rank", "step"))
    first = np.flatnonzero(_changes(rank) | _changes(step) | _changes(category))
    longest = _find_longest(end_ns - start_ns, first)
    columns = {
        "rank": rank[first],
        "step": step[first],
        "category": to_category_names(category[first]).cast(pl.String),
        "name": pieces.to_words(path_pieces.name[order][longest]).cast(pl.String),
        "start_ns": start_ns[first],
        "end_ns": end_ns[np.append(first[1:], len(end_ns))[: len(first)] - 1],
    }
    return pl.DataFrame(columns, schema=PATH_SEGMENT_COLUMNS)


def _changes(values: Array) -> Flags:
    """Return where a value differs from the one before; the first one does."""
    changes = np.ones(len(values), bool)
    changes[1:] = values[1:] != values[:-1]
    return changes


def _find_longest(length_ns: Ints, first: Ints) -> Ints:
    """Return the index of the (first) longest of each run; `first` are where runs begin."""
    if not len(first):
        return first
    run = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(length_ns))))
    longest = np.flatnonzero(length_ns == np.maximum.reduceat(length_ns, first)[run])
    return longest[_changes(run[longest])]


def path_cells(segments: pl.DataFrame) -> pl.DataFrame:
    """Add the path up by step, rank and category, in `CELL_COLUMNS`."""
    steps = segments["step"].unique().sort()
    block = -(-max(steps.len(), 1) // MAX_STEPS_OF_CELLS)
    first = steps.gather_every(block)
    index = first.search_sorted(segments["step"], side="right") - 1
    sizes = np.diff([*range(0, steps.len(), block), steps.len()])
    blocks = pl.DataFrame({"step": first, "steps": pl.Series(sizes, dtype=pl.Int32)})
    return (
        segments.with_columns(step=first.gather(index), ns=_LENGTH_NS)
        .group_by(*_CELL)
        .agg(pl.col("ns").sum())
        .join(blocks, on="step")
        .select(pl.col(name).cast(kind) for name, kind in CELL_COLUMNS.items())
        .sort(*_CELL)
    )


def path_stretches(path: pl.DataFrame) -> pl.DataFrame:
    """Return the stretches of the path in order of time, in `PATH_COLUMNS`."""
    if path.is_empty():
        return path
    ordered = path.sort("start_ns")
    start_ns, end_ns = int(ordered["start_ns"][0]), int(ordered["end_ns"][-1])
    return stretches_within(ordered, start_ns, end_ns, MAX_STRETCHES_DRAWN)


def stretches_within(
    stretches: pl.DataFrame, start_ns: int, end_ns: int, most: int
) -> pl.DataFrame:
    """Return at most so many stretches within an interval, in order of time."""
    inside = stretches.filter(pl.col("end_ns") > start_ns, pl.col("start_ns") < end_ns)
    cut = inside.with_columns(
        pl.col("start_ns").clip(lower_bound=pl.lit(start_ns)),
        pl.col("end_ns").clip(upper_bound=pl.lit(end_ns)),
    )
    return cut if cut.height <= most else _divide_into_bins(cut, most)


def _divide_into_bins(stretches: pl.DataFrame, bins: int) -> pl.DataFrame:
    """Let the process with most of the path stand for each of some equal parts of time."""
    starts_ns, end_ns = stretches["start_ns"].to_numpy(), int(stretches["end_ns"][-1])
    edges_ns = np.linspace(starts_ns[0], end_ns, bins + 1).round().astype(np.int64)
    bounds_ns = np.union1d(starts_ns, edges_ns)
    bin_index, stretch = (
        np.searchsorted(begins_ns, bounds_ns[:-1], side="right") - 1
        for begins_ns in (edges_ns, starts_ns)
    )
    process = stretches["process"].to_numpy()[stretch]
    begins = (
        pl.DataFrame({"bin": bin_index, "process": process, "ns": np.diff(bounds_ns)})
        .group_by("bin", "process")
        .agg(pl.col("ns").sum())
        .sort("bin", "ns", "process", descending=[False, True, False])
        .unique("bin", keep="first", maintain_order=True)
        .with_columns(start_ns=pl.lit(pl.Series(edges_ns[:-1])).gather(pl.col("bin")))
    )
    # Neighbours on the same process are one stretch.
    has_changed = pl.col("process") != pl.col("process").shift()
    return (
        begins.filter(has_changed.fill_null(value=True))
        .with_columns(end_ns=pl.col("start_ns").shift(-1).fill_null(end_ns))
        .select(pl.col(name).cast(kind) for name, kind in PATH_COLUMNS.items())
    )
