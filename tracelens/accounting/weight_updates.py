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
    "begin": pl.Int64(),
    "end": pl.Int64(),
}
USED_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "step": pl.Int32(),  # that left the weights
    "used": pl.Int64(),  # when they are first used: the next step's forward pass begins
}


def find_follow_interval(trace: Trace) -> int:
    """Return n where every n-th step is followed from its gradients to their use."""
    calls = sum(int(grid.arrived.sum()) for grid in trace.calls)
    return max(calls // MAX_CALLS_FOLLOWED, 1)


@dataclass(frozen=True, eq=False)
class Updates:
    """Those of one worker: columns of the tables above without rank and process."""

    gaps: tuple[Array, ...]
    updates: tuple[Array, ...]
    used: tuple[Array, ...]

    @classmethod
    def from_activity(
        cls, columns: Columns, activity: ThreadActivity, *, every: int, cache: BoundedCache
    ) -> Self:
        """Read when a worker updated weights, and used them.

        `cache` belongs to the pass over all workers; most of them update in the same order.
        """
        updates = activity.updates
        is_open = columns.number("end_ns")[updates] == FOREVER
        updates = updates[~is_open] if is_open.any() else updates
        return cls(
            _read_gaps(columns, updates, activity.passes),
            _read_by_bucket(columns, updates, every, cache),
            _read_uses(columns, activity.forward, every, cache),
        )


def _read_gaps(columns: Columns, rows: Indices, passes: Indices) -> tuple[Array, ...]:
    """Measure the gap between each update and the next one, in `GAP_COLUMNS` but the rank.

    Between two updates of one step that forward or backprop lie between is no gap, but a further pass:
    of another optimizer, or of more samples.
    """
    start, end, step = (columns.number(name).take(rows) for name in ("start_ns", "end_ns", "step"))
    reached = np.maximum.accumulate(end)[:-1]  # an update may lie within another
    gaps = np.flatnonzero(start[1:] > reached)
    is_within = step[:-1] == step[1:]
    candidates = gaps[is_within[gaps]]
    if len(candidates) and len(passes):
        pass_start, pass_end = (
            columns.number(name).take(passes) for name in ("start_ns", "end_ns")
        )
        begun_count = np.searchsorted(pass_start, start[1:][candidates])
        last_end = np.maximum.accumulate(pass_end)[begun_count - 1]
        has_pass = (begun_count > 0) & (last_end > reached[candidates])
        if has_pass.any():
            gaps = np.setdiff1d(gaps, candidates[has_pass], assume_unique=True)
    gap_ns = (start[1:] - reached)[gaps]
    small = np.uint32 if gap_ns.max(initial=0) < 1 << 32 else np.int64
    return step[:-1][gaps], reached[gaps], gap_ns.astype(small), is_within[gaps]


def _read_by_bucket(
    columns: Columns, rows: Indices, every: int, cache: BoundedCache
) -> tuple[Array, ...]:
    """Return when each step's weights are updated, by bucket where updates carry one."""
    steps, buckets = columns.number("step"), columns.number("bucket")
    step, bucket, rows, firsts = cache.get_or_make(
        "order of updates",
        (rows, steps, buckets),
        partial(_sort_by_bucket, rows, steps, buckets, every),
        every,
    )
    start, end = (columns.number(name).take(rows) for name in ("start_ns", "end_ns"))
    if not len(firsts):
        return step, bucket, start, end
    return step, bucket, np.minimum.reduceat(start, firsts), np.maximum.reduceat(end, firsts)


def _sort_by_bucket(rows: Indices, steps: Array, buckets: Array, every: int) -> tuple[Array, ...]:
    """Return each step and bucket of updates, their rows by these, and where among them each begins."""
    rows = rows[steps[rows] % every == 0]
    rows = rows[np.lexsort((buckets[rows], steps[rows]))]
    step, bucket = steps[rows], buckets[rows]
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = (step[1:] != step[:-1]) | (bucket[1:] != bucket[:-1])
    firsts = np.flatnonzero(is_first)
    return step[firsts], bucket[firsts], rows, firsts


def _read_uses(
    columns: Columns, forward: Indices, every: int, cache: BoundedCache
) -> tuple[Array, ...]:
    """Return steps that leave weights, and when these are first used; forward passes are by begin."""

    def find_first_uses() -> tuple[Array, ...]:
        rows = forward[(steps[forward] - 1) % every == 0]
        step, first = np.unique(steps[rows], return_index=True)
        return step - 1, rows[first]

    steps = columns.number("step")
    step, first_rows = cache.get_or_make(
        "first use of weights", (forward, steps), find_first_uses, every
    )
    return step, columns.number("start_ns")[first_rows]


@dataclass(frozen=True, eq=False)
class WeightUpdates:
    """Those of all workers, by process: `updates` in `UPDATE_COLUMNS`, `used` in `USED_COLUMNS`.

    There is one gap for each update, so gaps are kept as arrays of each worker.
    """

    ranks: tuple[int, ...]
    gaps_of_workers: tuple[tuple[Array, ...], ...]
    updates: pl.DataFrame
    used: pl.DataFrame

    @property
    def gaps(self) -> pl.DataFrame:
        """All gaps, in `GAP_COLUMNS`, built at each access."""
        return pl.concat(self.some_gaps())

    def some_gaps(self) -> Iterator[pl.DataFrame]:
        """Yield all gaps, those of some workers at a time, in `GAP_COLUMNS`."""
        for first in range(0, max(len(self.ranks), 1), WORKERS_PER_TABLE):
            workers = slice(first, first + WORKERS_PER_TABLE)
            yield _to_table(GAP_COLUMNS, self.ranks[workers], self.gaps_of_workers[workers])

    @classmethod
    def from_workers(cls, owners: Sequence[tuple[int, int]], updates_of: Sequence[Updates]) -> Self:
        """Put the workers' together; `owners` are their processes and ranks."""
        processes = [process for process, _ in owners]
        updates = _to_table(UPDATE_COLUMNS, processes, [one.updates for one in updates_of])
        return cls(
            ranks=tuple(rank for _, rank in owners),
            gaps_of_workers=tuple(accumulate((one.gaps for one in updates_of), _share_equal)),
            updates=updates.with_columns(pl.when(pl.col("bucket") != NULL).then("bucket")),
            used=_to_table(USED_COLUMNS, processes, [one.used for one in updates_of]),
        )


def _share_equal(before: tuple[Array, ...], arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return arrays of a worker, those of the one before where they are equal, so that one is kept."""
    pairs = zip(before, arrays, strict=True)
    return tuple(shared if np.array_equal(array, shared) else array for shared, array in pairs)


def _to_table(
    columns: dict[str, pl.DataType], owners: Sequence[int], arrays_of: Sequence[tuple[Array, ...]]
) -> pl.DataFrame:
    if not arrays_of:
        return pl.DataFrame(schema=columns)
    owner = np.repeat(np.array(owners, np.int32), [len(arrays[0]) for arrays in arrays_of])
    values = [owner, *map(np.concatenate, zip(*arrays_of, strict=True))]
    series = zip(columns.items(), values, strict=True)
    return pl.DataFrame([pl.Series(name, column).cast(kind) for (name, kind), column in series])
