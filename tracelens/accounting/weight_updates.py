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

    from tracelens.arrays import Array, Indices
    from tracelens.memory import BoundedCache
    from tracelens.model.columns import Columns
    from tracelens.model.trace import Trace

__all__ = [
    "GAP_COLUMNS",
    "UPDATE_COLUMNS",
    "USED_COLUMNS",
    "Updates",
    "WeightUpdates",
    "followed",
    "sharing",
]

WORKERS_AT_ONCE: Final = 32  # workers: as many are followed at once [policy]
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


def followed(trace: Trace) -> int:
    """Return of how many steps one is followed from its gradients to their use."""
    calls = sum(int(grid.arrived.sum()) for grid in trace.calls)
    return max(calls // MAX_CALLS_FOLLOWED, 1)


@dataclass(frozen=True, eq=False)
class Updates:
    """Those of one worker: columns of the tables above without rank and process."""

    gaps: tuple[Array, ...]
    updates: tuple[Array, ...]
    used: tuple[Array, ...]

    @classmethod
    def of(
        cls,
        columns: Columns,
        updates: Indices,
        forward: Indices,
        passes: Indices,
        *,
        every: int,
        cache: BoundedCache,
    ) -> Self:
        """Take the rows of a worker's updates, its forward passes, and of forward and backprop.

        Updates are those of the training thread, and so are `passes`. `cache` is that of the pass over
        all workers, most of which update in the same order.
        """
        open_ = columns.number("end_ns")[updates] == FOREVER
        updates = updates[~open_] if open_.any() else updates
        return cls(
            _gaps(columns, updates, passes),
            _by_bucket(columns, updates, every, cache),
            _used(columns, forward, every, cache),
        )


def _gaps(columns: Columns, rows: Indices, passes: Indices) -> tuple[Array, ...]:
    """Return what lies between each update and the next one.

    Between two updates of one step that forward or backprop lie between is no gap, but a further pass:
    of another optimizer, or of more samples.
    """
    start, end, step = (columns.number(name).take(rows) for name in ("start_ns", "end_ns", "step"))
    over = np.maximum.accumulate(end)[:-1]  # an update may lie within another
    apart = np.flatnonzero(start[1:] > over)
    inside = apart[step[:-1][apart] == step[1:][apart]]
    passed = inside[_holds_pass(columns, passes, over[inside], start[1:][inside])]
    if len(passed):
        apart = np.setdiff1d(apart, passed, assume_unique=True)
    within, gap = step[:-1] == step[1:], (start[1:] - over)[apart]
    small = np.uint32 if gap.max(initial=0) < 1 << 32 else np.int64
    return step[:-1][apart], over[apart], gap.astype(small), within[apart]


def _holds_pass(columns: Columns, passes: Indices, begin: Array, end: Array) -> Array:
    """Return in which stretches of time there is forward or backprop."""
    if not len(begin) or not len(passes):
        return np.zeros(len(begin), np.bool_)
    starts, ends = (columns.number(name).take(passes) for name in ("start_ns", "end_ns"))
    until = np.maximum.accumulate(ends)
    before = np.searchsorted(starts, end)  # so many begin earlier than the stretch ends
    return np.asarray((before > 0) & (until[before - 1] > begin))


def _by_bucket(
    columns: Columns, rows: Indices, every: int, cache: BoundedCache
) -> tuple[Array, ...]:
    """Return when each step's weights are updated, by bucket where updates carry one."""
    steps, buckets = columns.number("step"), columns.number("bucket")
    step, bucket, rows, new = cache.get_or_make(
        "order of updates",
        (rows, steps, buckets),
        partial(_ordered, rows, steps, buckets, every),
        every,
    )
    start, end = (columns.number(name).take(rows) for name in ("start_ns", "end_ns"))
    if not len(new):
        return step, bucket, start, end
    return step, bucket, np.minimum.reduceat(start, new), np.maximum.reduceat(end, new)


def _ordered(rows: Indices, steps: Array, buckets: Array, every: int) -> tuple[Array, ...]:
    """Return each step and bucket of updates, their rows by these, and where among them each begins."""
    rows = rows[steps[rows] % every == 0]
    rows = rows[np.lexsort((buckets[rows], steps[rows]))]
    step, bucket = steps[rows], buckets[rows]
    is_new = np.ones(len(rows), np.bool_)
    is_new[1:] = (step[1:] != step[:-1]) | (bucket[1:] != bucket[:-1])
    new = np.flatnonzero(is_new)
    return step[new], bucket[new], rows, new


def _used(columns: Columns, rows: Indices, every: int, cache: BoundedCache) -> tuple[Array, ...]:
    """Return when the weights that a step leaves are first used."""
    steps = columns.number("step")
    step, first = cache.get_or_make(
        "first use of weights", (rows, steps), partial(_first, rows, steps, every), every
    )
    return step, columns.number("start_ns")[first]


def _first(rows: Indices, steps: Array, every: int) -> tuple[Array, ...]:
    """Return steps that leave weights, and the rows in which these are first used; rows are by begin."""
    rows = rows[(steps[rows] - 1) % every == 0]
    step, first = np.unique(steps[rows], return_index=True)
    return step - 1, rows[first]


@dataclass(frozen=True, eq=False)
class WeightUpdates:
    """Those of all workers, by process: `updates` in `UPDATE_COLUMNS`, `used` in `USED_COLUMNS`.

    Of the gaps there is one for each update, so that they are kept as arrays of each worker.
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
        for first in range(0, max(len(self.ranks), 1), WORKERS_AT_ONCE):
            some = slice(first, first + WORKERS_AT_ONCE)
            yield _table(GAP_COLUMNS, self.ranks[some], self.gaps_of_workers[some])

    @classmethod
    def of(cls, owners: Sequence[tuple[int, int]], found: Sequence[Updates]) -> Self:
        """Put the workers' together; `owners` are their processes and ranks."""
        processes = [process for process, _ in owners]
        updates = _table(UPDATE_COLUMNS, processes, [one.updates for one in found])
        return cls(
            ranks=tuple(rank for _, rank in owners),
            gaps_of_workers=tuple(accumulate((one.gaps for one in found), sharing)),
            updates=updates.with_columns(pl.when(pl.col("bucket") != NULL).then("bucket")),
            used=_table(USED_COLUMNS, processes, [one.used for one in found]),
        )


def sharing(like: tuple[Array, ...], mine: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return arrays of a worker, those of another one where they are equal, so that one is kept."""
    pairs = zip(mine, like, strict=True)
    return tuple(other if np.array_equal(own, other) else own for own, other in pairs)


def _table(
    columns: dict[str, pl.DataType], owners: Sequence[int], found: Sequence[tuple[Array, ...]]
) -> pl.DataFrame:
    if not found:
        return pl.DataFrame(schema=columns)
    first = np.repeat(np.array(owners, np.int32), [len(part[0]) for part in found])
    others = [np.concatenate(part) for part in zip(*found, strict=True)]
    series = zip(columns.items(), [first, *others], strict=True)
    return pl.DataFrame([pl.Series(name, part).cast(kind) for (name, kind), part in series])
