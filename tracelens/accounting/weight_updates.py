"""Updates of weights: when they were made, what lies between them, and when they are first used.

Runs have millions of updates, one for each bucket, rank and step, so that each worker's are reduced
when its time is accounted for: to the gaps between them, and, of every n-th step, to when they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import polars as pl

from tracelens.model.columns import FOREVER, NULL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.accounting.thread_activity import ThreadActivity
    from tracelens.arrays import Array, Indices
    from tracelens.memory import BoundedCache
    from tracelens.model.columns import Columns
    from tracelens.model.trace import Trace

WORKERS_PER_TABLE: Final = 32  # workers: gaps of as many are put into a table at once [policy]
# calls: only every n-th step of a longer run is followed [policy]
MAX_CALLS_FOLLOWED: Final = 250_000
GAP_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "step": pl.Int32(),  # of the update after which the gap lies
    "start_ns": pl.Int64(),
    "gap_ns": pl.Int64(),
    "within": pl.Boolean(),  # the next update belongs to the same step
}
UPDATE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "step": pl.Int32(),
    "bucket": pl.Int32(),
    "begin": pl.Int64(),  # ns, as all times here
    "end": pl.Int64(),
}
USE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "step": pl.Int32(),  # that left the weights
    "used": pl.Int64(),  # when they are first used: the next step's forward pass begins
}


def find_step_interval(trace: Trace) -> int:
    """Return n where every n-th step is followed from its gradients to their use."""
    calls = sum(int(grid.arrival_counts.sum()) for grid in trace.calls)
    return max(calls // MAX_CALLS_FOLLOWED, 1)


@dataclass(frozen=True, eq=False)
class WorkerUpdates:
    """Updates of one worker: columns of the tables above, without the rank or process."""

    gap_columns: tuple[Array, ...]
    update_columns: tuple[Array, ...]
    use_columns: tuple[Array, ...]

    @classmethod
    def from_activity(
        cls, columns: Columns, activity: ThreadActivity, *, step_interval: int, cache: BoundedCache
    ) -> Self:
        """Read when a worker updated weights, and, of every n-th step, when it used them.

        `cache` belongs to the pass over all workers; most of them update in the same order.
        """
        update_rows = activity.update_rows
        is_open = columns.number_column("end_ns")[update_rows] == FOREVER
        update_rows = update_rows[~is_open] if is_open.any() else update_rows
        return cls(
            gap_columns=_read_gaps(columns, update_rows, activity.pass_rows),
            update_columns=_read_updates(columns, update_rows, step_interval, cache),
            use_columns=_read_first_uses(columns, activity.forward_rows, step_interval, cache),
        )


def _read_gaps(columns: Columns, update_rows: Indices, pass_rows: Indices) -> tuple[Array, ...]:
    """Return the gaps between updates, [gap]: step, begin and length, ns, and if both are in one step.

    Two updates of a step with forward or backprop (`pass_rows`) between them have no gap, but a further
    pass: of another optimizer, or of more samples.
    """
    start_ns, end_ns, step = (
        columns.number_column(name).take(update_rows) for name in ("start_ns", "end_ns", "step")
    )
    covered_until_ns = np.maximum.accumulate(end_ns)[:-1]  # an update may lie within another
    gap_indices = np.flatnonzero(start_ns[1:] > covered_until_ns)
    is_within = step[:-1] == step[1:]
    gaps_in_step = gap_indices[is_within[gap_indices]]
    if len(gaps_in_step) and len(pass_rows):
        pass_begin_ns, pass_end_ns = (
            columns.number_column(name).take(pass_rows) for name in ("start_ns", "end_ns")
        )
        begun_count = np.searchsorted(pass_begin_ns, start_ns[1:][gaps_in_step])
        last_pass_end_ns = np.maximum.accumulate(pass_end_ns)[begun_count - 1]
        has_pass = (begun_count > 0) & (last_pass_end_ns > covered_until_ns[gaps_in_step])
        if has_pass.any():
            gap_indices = np.setdiff1d(gap_indices, gaps_in_step[has_pass], assume_unique=True)
    gap_ns = (start_ns[1:] - covered_until_ns)[gap_indices]
    gap_type = np.uint32 if gap_ns.max(initial=0) < 1 << 32 else np.int64
    begin_ns, gap_step = covered_until_ns[gap_indices], step[:-1][gap_indices]
    return gap_step, begin_ns, gap_ns.astype(gap_type), is_within[gap_indices]


def _read_updates(
    columns: Columns, update_rows: Indices, step_interval: int, cache: BoundedCache
) -> tuple[Array, ...]:
    """Return step, bucket (`NULL`: none), begin and end, ns, [update], of every n-th step's updates.

    Args:
        columns: The events of a process.
        update_rows: Rows of spans that update weights.
        step_interval: Only steps whose number is a multiple of it are read.
        cache: Holds the order of rows, which processes of one program share.
    """
    steps, buckets = columns.number_column("step"), columns.number_column("bucket")
    step, bucket, rows, group_begins = cache.get_or_make(
        "order of updates",
        (update_rows, steps, buckets),
        partial(_sort_by_bucket, update_rows, steps, buckets, step_interval),
        step_interval,
    )
    # The spans of one bucket are one update: each begins at an index of `rows` in `group_begins`.
    start_ns, end_ns = (columns.number_column(name).take(rows) for name in ("start_ns", "end_ns"))
    if not len(group_begins):
        return step, bucket, start_ns, end_ns
    return (
        step,
        bucket,
        np.minimum.reduceat(start_ns, group_begins),
        np.maximum.reduceat(end_ns, group_begins),
    )


def _sort_by_bucket(
    rows: Indices, step_numbers: Array, buckets: Array, step_interval: int
) -> tuple[Array, ...]:
    """Sort updates (rows) by step and bucket, those of every n-th step.

    `step_numbers` and `buckets` are those of all events. Returns the step and the bucket of each group,
    all rows in that order, and where each group begins among these.
    """
    rows = rows[step_numbers[rows] % step_interval == 0]
    rows = rows[np.lexsort((buckets[rows], step_numbers[rows]))]
    step_of_row, bucket_of_row = step_numbers[rows], buckets[rows]
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = (step_of_row[1:] != step_of_row[:-1]) | (bucket_of_row[1:] != bucket_of_row[:-1])
    group_begins = np.flatnonzero(is_first)
    return step_of_row[group_begins], bucket_of_row[group_begins], rows, group_begins


def _read_first_uses(
    columns: Columns, forward_rows: Indices, step_interval: int, cache: BoundedCache
) -> tuple[Array, ...]:
    """Return steps, and when weights are first used after each: the next forward pass, ns, both [step].

    Forward passes are in order of time; only every n-th step counts (`step_interval`).
    """

    def find_first_uses() -> tuple[Array, ...]:
        rows = forward_rows[(steps[forward_rows] - 1) % step_interval == 0]
        using_step, first = np.unique(steps[rows], return_index=True)
        return using_step - 1, rows[first]  # the step before left the weights

    steps = columns.number_column("step")
    step, first_rows = cache.get_or_make(
        "first use of weights", (forward_rows, steps), find_first_uses, step_interval
    )
    return step, columns.number_column("start_ns")[first_rows]


@dataclass(frozen=True, eq=False)
class WeightUpdates:
    """Updates of all workers, by process: `updates` in `UPDATE_COLUMNS`, `used` in `USE_COLUMNS`.

    Each update has a gap, so arrays of each worker hold the gaps.
    """

    ranks: tuple[int, ...]
    gap_columns_by_worker: tuple[tuple[Array, ...], ...]
    updates: pl.DataFrame
    used: pl.DataFrame  # the first uses of the updated weights

    @property
    def gap_table(self) -> pl.DataFrame:
        """All gaps, in `GAP_COLUMNS`, built at each access."""
        return pl.concat(self.build_gap_tables())

    def build_gap_tables(self) -> Iterator[pl.DataFrame]:
        """Yield tables of gaps, a row each, in `GAP_COLUMNS`: those of some workers at a time."""
        for first_worker in range(0, max(len(self.ranks), 1), WORKERS_PER_TABLE):
            workers = slice(first_worker, first_worker + WORKERS_PER_TABLE)
            yield _to_table(GAP_COLUMNS, self.ranks[workers], self.gap_columns_by_worker[workers])

    @classmethod
    def from_workers(
        cls, processes: Sequence[int], ranks: Sequence[int], updates: Sequence[WorkerUpdates]
    ) -> Self:
        """Join the updates of all workers; all three have an entry per worker."""
        table = _to_table(UPDATE_COLUMNS, processes, [worker.update_columns for worker in updates])
        return cls(
            ranks=tuple(ranks),
            gap_columns_by_worker=tuple(
                accumulate((worker.gap_columns for worker in updates), _share_equal_arrays)
            ),
            updates=table.with_columns(pl.when(pl.col("bucket") != NULL).then("bucket")),
            used=_to_table(USE_COLUMNS, processes, [worker.use_columns for worker in updates]),
        )


def _share_equal_arrays(earlier: tuple[Array, ...], arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return arrays of a worker, those of the one before where they are equal, so that one is kept."""
    pairs = zip(earlier, arrays, strict=True)
    return tuple(shared if np.array_equal(array, shared) else array for shared, array in pairs)


def _to_table(
    schema: dict[str, pl.DataType],
    owners: Sequence[int],
    columns_by_worker: Sequence[tuple[Array, ...]],
) -> pl.DataFrame:
    """Join the columns of all workers; the first column is the process or rank that owns each row.

    `columns_by_worker` has the other columns of `schema`, each [row]; `owners` are in the same order.
    """
    if not columns_by_worker:
        return pl.DataFrame(schema=schema)
    row_counts = [len(first_column) for first_column, *_ in columns_by_worker]
    owner_column = np.repeat(np.array(owners, np.int32), row_counts)
    values = [owner_column, *map(np.concatenate, zip(*columns_by_worker, strict=True))]
    series = zip(schema.items(), values, strict=True)
    return pl.DataFrame([pl.Series(name, array).cast(dtype) for (name, dtype), array in series])
