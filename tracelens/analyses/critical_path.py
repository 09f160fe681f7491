"""The critical path: the one chain of work and waiting across ranks that is as long as the job.

It is walked backwards over the exact partition of every rank's time (`replay/path.py`), so its parts, by
rank and category, sum to the job. A path with more stretches than a picture has room for is cut into
equal bins of time, each represented by the process with most of the path in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import UNINSTRUMENTED
from tracelens.accounting.phases import job_ns, measure_ns_after_steps
from tracelens.accounting.pieces import sum_covered_ns_before, to_category_names
from tracelens.model.display import DisplayMixin
from tracelens.replay.path import PATH_COLUMNS, Lanes, walk_path
from tracelens.replay.slack import measure_slack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.pieces import Segments, WorkerPieces
    from tracelens.arrays import Ints
    from tracelens.facts import Facts
    from tracelens.model.findings import Finding
    from tracelens.model.trace import Trace

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
    path = (
        pl.DataFrame(schema=PATH_COLUMNS)
        if trace.partial_communicators
        else walk_path(Lanes(trace, phases))
    )
    pieces = _cut_path(path, phases.pieces)
    segments = path_segments(pieces, phases.pieces)
    graphs = facts.replay.build_graphs()
    step_ns = trace.steps.select(_LENGTH_NS.median()).item()
    return CriticalPath(
        path=path,
        shares=_sum_shares(path, pieces, trace),
        slack=measure_slack(graphs, step_ns if isinstance(step_ns, float) else 0.0),
        cells=path_cells(segments),
        longest=segments.top_k(MAX_LONGEST_PIECES, by=_LENGTH_NS).sort(_LENGTH_NS, descending=True),
        stretches=path_stretches(path),
    )


def _cut_path(path: pl.DataFrame, pieces: Segments) -> pl.DataFrame:
    """Return a row for each piece on the path, clipped to it, with codes of `category` and `name`.

    `path` has a row for each interval of it on one process.
    """
    path = path.sort("process", maintain_order=True)
    process, begins_ns, ends_ns = path.select("process", "start_ns", "end_ns").to_numpy().T
    clipped_columns: list[tuple[Ints, ...]] = [(np.zeros(0, np.int64),) * 5]
    for worker, worker_process in enumerate(pieces.processes):
        rows = slice(*np.searchsorted(process, (worker_process, worker_process + 1)).tolist())
        if rows.start < rows.stop and len(
            (own_pieces := pieces.unpack_worker(worker)).window_indices
        ):
            clipped_columns.append(_clip_pieces(own_pieces, begins_ns[rows], ends_ns[rows]))
    step_row, *columns = map(np.concatenate, zip(*clipped_columns, strict=True))
    clipped = pl.DataFrame(columns, schema=("category", "name", "start_ns", "end_ns"))
    return clipped.hstack(pieces.step_windows.select("process", "rank", "step")[step_row])


def _clip_pieces(pieces: WorkerPieces, begins_ns: Ints, ends_ns: Ints) -> tuple[Ints, ...]:
    """Return the pieces of a process within the path's intervals on it, clipped to these.

    As columns, [piece]: the row of the step in `Segments.step_windows`, codes of category and name,
    begin and end, ns.
    """
    piece, interval = _find_overlaps(pieces.bounds_ns, begins_ns, ends_ns)
    start_ns = np.maximum(pieces.bounds_ns[piece], begins_ns[interval])
    end_ns = np.minimum(pieces.bounds_ns[piece + 1], ends_ns[interval])
    has_length = end_ns > start_ns
    piece = piece[has_length]
    codes = (
        column[piece].astype(np.int64) for column in (pieces.category_codes, pieces.name_codes)
    )
    step_row = pieces.window_indices[piece].astype(np.int64) + pieces.first_window
    return step_row, *codes, start_ns[has_length], end_ns[has_length]


def _find_overlaps(bounds_ns: Ints, begins_ns: Ints, ends_ns: Ints) -> tuple[Ints, Ints]:
    """Return every pair (piece, interval) that touches, as two arrays of indices.

    `bounds_ns` are begins of pieces, and the end of the last; the others are those of intervals.
    """
    last_piece = len(bounds_ns) - 2
    first_piece = np.clip(np.searchsorted(bounds_ns, begins_ns, side="right") - 1, 0, last_piece)
    end_piece = np.clip(np.searchsorted(bounds_ns, ends_ns), 1, last_piece + 1)
    pairs = np.maximum(end_piece - first_piece, 0)  # of each interval
    interval = np.repeat(np.arange(len(begins_ns)), pairs)
    first_pair = np.cumsum(pairs) - pairs
    return first_piece[interval] + np.arange(len(interval)) - first_pair[interval], interval


def _sum_shares(path: pl.DataFrame, path_pieces: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Add the path up by rank and category, in `SHARE_COLUMNS`, without steps that were left out.

    `path` has a row for each interval on a process, `path_pieces` one for each piece of that.
    """
    run_ns, ns = job_ns(trace), pl.col("ns")
    spent_times = path_pieces.select("process", "category", ns=_LENGTH_NS)
    left_out_rows = [
        (process, UNINSTRUMENTED, -left_out_ns)
        for process, left_out_ns in _measure_left_out(trace, path)
    ]
    sums = (
        pl.concat(
            [spent_times, pl.DataFrame(left_out_rows, schema=spent_times.schema, orient="row")]
        )
        .group_by("process", "category")
        .agg(ns.sum())
        .filter(ns != 0)
    )
    sums = sums.with_columns(
        category=to_category_names(sums["category"].to_numpy()).cast(pl.String)
    )
    outside_ns = run_ns - int(sums["ns"].sum())
    if outside_ns > 0 and not path.is_empty():
        outside_row = (path["process"][-1], "outside", outside_ns)
        sums.extend(pl.DataFrame([outside_row], schema=sums.schema, orient="row"))
    return (
        sums.join(trace.workers.select("process", "rank"), on="process", how="left")
        .with_columns(share=ns / pl.lit(max(run_ns, 1)))
        .select(pl.col(name).cast(kind) for name, kind in SHARE_COLUMNS.items())
        .sort("ns", "rank", "category", descending=[True, False, False])
    )


def _measure_left_out(trace: Trace, path: pl.DataFrame) -> Iterator[tuple[int, int]]:
    """Yield how much of each process's part of the path is between steps that were kept, ns."""
    steps = trace.steps.with_columns(gap_ns=measure_ns_after_steps(trace.steps)).filter(
        pl.col("gap_ns") > 0
    )
    for (process,), own_steps in steps.partition_by("process", as_dict=True).items():
        begins_ns = own_steps["end_ns"].to_numpy()
        ends_ns = begins_ns + own_steps["gap_ns"].to_numpy()
        intervals = path.filter(process=process)
        gaps_until_end_ns, gaps_until_start_ns = (
            sum_covered_ns_before(begins_ns, ends_ns, intervals[name].to_numpy())
            for name in ("end_ns", "start_ns")
        )
        yield process, round(float((gaps_until_end_ns - gaps_until_start_ns).sum()))


def path_segments(path_pieces: pl.DataFrame, pieces: Segments) -> pl.DataFrame:
    """Join pieces of the path (rows) that are neighbours of a rank, step and category, by time."""
    segments = (
        path_pieces.sort("start_ns", maintain_order=True)
        .group_by(segment=pl.struct(_CELL).rle_id(), maintain_order=True)
        .agg(
            pl.col(*_CELL, "start_ns").first(),
            pl.col("end_ns").last(),
            pl.col("name").get(_LENGTH_NS.arg_max()),
        )
    )
    word_columns = {
        "category": to_category_names(segments["category"].to_numpy()),
        "name": pieces.to_span_names(segments["name"].to_numpy()),
    }
    return segments.with_columns(**word_columns).select(
        pl.col(name).cast(kind) for name, kind in PATH_SEGMENT_COLUMNS.items()
    )


def path_cells(segments: pl.DataFrame) -> pl.DataFrame:
    """Add segments up by step (or some neighbours), rank and category, in `CELL_COLUMNS`."""
    steps = segments["step"].unique().sort()
    block_size = -(-max(steps.len(), 1) // MAX_STEPS_OF_CELLS)
    first_steps = steps.gather_every(block_size)
    block = first_steps.search_sorted(segments["step"], side="right") - 1
    sizes = np.diff([*range(0, steps.len(), block_size), steps.len()])
    blocks = pl.DataFrame({"step": first_steps, "steps": pl.Series(sizes, dtype=pl.Int32)})
    return (
        segments.with_columns(step=first_steps.gather(block), ns=_LENGTH_NS)
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
    stretches: pl.DataFrame, start_ns: int, end_ns: int, max_count: int
) -> pl.DataFrame:
    """Return the stretches within an interval in order of time, joined to `max_count` at most.

    A stretch (row) is a part of the path on one process.
    """
    overlapping = stretches.filter(pl.col("end_ns") > start_ns, pl.col("start_ns") < end_ns)
    clipped = overlapping.with_columns(
        pl.col("start_ns").clip(lower_bound=pl.lit(start_ns)),
        pl.col("end_ns").clip(upper_bound=pl.lit(end_ns)),
    )
    return clipped if clipped.height <= max_count else _divide_into_bins(clipped, max_count)


def _divide_into_bins(stretches: pl.DataFrame, bin_count: int) -> pl.DataFrame:
    """Let the process with most of the path represent each of `bin_count` equal parts of its time.

    `stretches` has one row per stretch of the path on one process, in order of time.
    """
    starts_ns, end_ns = stretches["start_ns"].to_numpy(), int(stretches["end_ns"][-1])
    edges_ns = np.linspace(starts_ns[0], end_ns, bin_count + 1).round().astype(np.int64)
    bounds_ns = np.union1d(starts_ns, edges_ns)
    bin_index, stretch = (
        np.searchsorted(begins_ns, bounds_ns[:-1], side="right") - 1
        for begins_ns in (edges_ns, starts_ns)
    )
    process = stretches["process"].to_numpy()[stretch]
    main_processes = (
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
        main_processes.filter(has_changed.fill_null(value=True))
        .with_columns(end_ns=pl.col("start_ns").shift(-1).fill_null(end_ns))
        .select(pl.col(name).cast(kind) for name, kind in PATH_COLUMNS.items())
    )
