"""For whom others waited in collectives and messages, and for how long it was for that rank alone.

Time that several calls wait for a rank counts once: a rank that is delayed is delayed for all later
calls, until the ranks meet. A rank that was blocked itself, in a call of other ranks, did not cause
that delay. So the cause is followed back along chains of messages: a rank caused the wait for it, minus
the time in which it was blocked itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES
from tracelens.model.calls import NEVER
from tracelens.stats.robust import measure_deviation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Int32s, Ints
    from tracelens.model.calls import CallGrid
    from tracelens.model.trace import Trace

# times the uncertainty of clocks: a wait for a message that is no longer is left out [chosen]
CLOCK_UNCERTAINTIES_OF_WAIT: Final = 3
_IS_WAIT: Final = np.array(CATEGORIES) == "wait"


def find_awaited_messages(trace: Trace) -> pl.DataFrame:
    """Return one row per wait in a message that is longer than the clocks' uncertainty.

    `last_rank` is the rank waited for, `last_ns` the end of the wait, `alone_ns` its length.
    """
    wait_ns = pl.col("end_ns") - pl.col("start_ns")
    least_ns = CLOCK_UNCERTAINTIES_OF_WAIT * trace.uncertainty_ns
    return trace.message_waits.filter(wait_ns > least_ns).select(
        step="step", last_rank="rank", last_ns="end_ns", alone_ns=wait_ns
    )


def sum_waits_by_rank(caused_waits: pl.DataFrame) -> pl.DataFrame:
    """Sum the `alone_ns` that `measure_caused_waits` returns, ns: a row per `rank`."""
    sums = caused_waits.group_by("rank").agg(pl.col("alone_ns").sum())
    return sums.with_columns(pl.col("alone_ns").round().cast(pl.Int64))


def measure_caused_waits(calls: pl.DataFrame, phases: Phases) -> pl.DataFrame:
    """Return the times in which others waited for one rank alone: `rank`, `step`, `alone_ns`.

    The time that the rank itself waited meanwhile is subtracted. `calls` has a row per call or message:
    the `last_rank` to arrive, when (`last_ns`), and how long others waited for it alone (`alone_ns`).
    """
    waits = _remove_overlaps(calls)  # by rank
    bounds_ns = waits.select("start_ns", "end_ns").to_numpy()
    alone_ns = np.diff(bounds_ns, axis=1)[:, 0].astype(np.float64)
    worker_by_rank = {rank: index for index, rank in enumerate(phases.pieces.ranks)}
    ranks, first_rows = np.unique(waits["rank"].to_numpy(), return_index=True)
    stop_rows = np.append(first_rows, len(bounds_ns))[1:]
    for rank, first_row, stop_row in zip(ranks.tolist(), first_rows, stop_rows, strict=True):
        if rank in worker_by_rank:
            pieces = phases.pieces.unpack_worker(worker_by_rank[rank])
            waited_before_ns = pieces.sum_ns_before(_IS_WAIT, bounds_ns[first_row:stop_row])
            alone_ns[first_row:stop_row] -= np.diff(waited_before_ns, axis=1)[:, 0]
    return waits.select("rank", "step", alone_ns=pl.Series(alone_ns))


def _remove_overlaps(calls: pl.DataFrame) -> pl.DataFrame:
    """Return a row per time in which others waited for `rank` alone; those of a rank do not overlap.

    `calls` has one row per call, as `measure_caused_waits` takes them.
    """
    latest_end_ns = pl.col("end_ns").cum_max().shift(1).over("rank")  # of the waits before
    return (
        calls.filter(pl.col("alone_ns") > 0)
        .select(
            "step",
            rank="last_rank",
            start_ns=pl.col("last_ns") - pl.col("alone_ns"),
            end_ns="last_ns",
        )
        .sort("rank", "start_ns")
        .with_columns(start_ns=pl.max_horizontal("start_ns", latest_end_ns))
        .filter(pl.col("start_ns") < pl.col("end_ns"))
    )


def select_complete_calls(trace: Trace, step_numbers: Ints) -> tuple[CallGrid, ...]:
    """Return the collectives of some steps that every rank came to."""
    grids = (
        grid.take_calls(
            np.flatnonzero(
                (grid.last_arrival_ns != NEVER)
                & np.isin(grid.first_value_of_calls("step"), step_numbers)
            )
        )
        for grid in trace.calls
    )
    return tuple(grid for grid in grids if grid.call_count)


def measure_last_share(grids: Sequence[CallGrid], ranks: tuple[int, ...]) -> float | None:
    """Return in what share of collectives one of `ranks` came last; None without any."""
    if not grids:
        return None
    last_ranks = np.concatenate([grid.last_rank_of_call for grid in grids])
    return float(np.mean(np.isin(last_ranks, ranks)))


def measure_blocking(
    grids: Sequence[CallGrid], ranks: tuple[int, ...]
) -> tuple[float, float] | None:
    """Measure how long collectives waited for `ranks` alone, less their wait for a typical rank.

    Returns two times in nanoseconds, or None without collectives. The first sums, over all calls, the
    time from the last arrival of the others to that of `ranks`. It is reduced by the time for which a
    typical other rank holds up all calls. The second is the standard deviation of this time among the
    other ranks.
    """
    if not grids:
        return None
    present_ranks = (
        rank for grid in grids for rank in grid.ranks[grid.is_made.any(axis=0)].tolist()
    )
    alone_ns, hold_ns_by_rank = 0, dict.fromkeys(present_ranks, 0)
    for grid in grids:
        is_named = np.isin(grid.ranks, ranks)
        if is_named.any() and not is_named.all():
            for _, block in grid.split_into_blocks():
                named_arrival_ns, other_arrival_ns = (
                    block.start_ns[:, is_member].max(axis=1) for is_member in (is_named, ~is_named)
                )
                has_both = (named_arrival_ns != NEVER) & (other_arrival_ns != NEVER)
                alone_ns += int(np.maximum(named_arrival_ns - other_arrival_ns, 0)[has_both].sum())
        if len(is_named) > 1:
            for rank, ns in _sum_by_rank(grid.last_rank_of_call, grid.last_gap_ns).items():
                hold_ns_by_rank[rank] = hold_ns_by_rank.get(rank, 0) + ns
    other_holds_ns = np.array(
        [ns for rank, ns in hold_ns_by_rank.items() if rank not in ranks], np.float64
    )
    if not len(other_holds_ns):
        return float(alone_ns), 0.0
    typical_hold_ns = float(np.median(other_holds_ns))
    return float(alone_ns) - typical_hold_ns, measure_deviation(other_holds_ns - typical_hold_ns)


def _sum_by_rank(ranks: Int32s, values: Ints) -> dict[int, int]:
    distinct_ranks, rank_index = np.unique(ranks, return_inverse=True)
    sums = np.bincount(rank_index, values).astype(np.int64)
    return dict(zip(distinct_ranks.tolist(), sums.tolist(), strict=True))
