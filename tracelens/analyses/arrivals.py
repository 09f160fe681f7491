"""Arrivals: the skew with which ranks enter collectives, last arrivals, and the wait they cause.

Skew of a call = last arrival - first; less than three times the clocks' uncertainty counts as none. A
rank is last more often than chance explains beyond what n ranks, drawn anew in every step, reach in
0.3 % of runs (docs/analyses/collectives-and-links.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.communication.awaited_ranks import measure_caused_waits, sum_waits_by_rank
from tracelens.accounting.jitter import ALONE_COLUMNS
from tracelens.model.calls import NEVER, measure_last_gap_ns, repeats_one_column
from tracelens.model.columns import FOREVER
from tracelens.model.display import DisplayMixin
from tracelens.schema.vocabulary import COLLECTIVES
from tracelens.stats.histogram import log_histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.arrays import Flags, Int32s, Ints
    from tracelens.facts import Facts
    from tracelens.model.calls import CallGrid
    from tracelens.model.findings import Finding

CLOCK_UNCERTAINTIES_OF_SKEW: Final = 3  # times the clocks' uncertainty: less is no skew [chosen]
# probability: by chance some rank is last more often than the bound as rarely [chosen]
MAX_P_VALUE_IF_LAST_BY_CHANCE: Final = 0.003

_CALL_COLUMNS: Final[dict[str, pl.DataType]] = {
    "communicator": pl.String(),
    "seq": pl.UInt32(),
    "op": pl.String(),
    "step": pl.Int32(),
    "first_ns": pl.Int64(),  # the first arrival
    "over_ns": pl.Int64(),  # the last exit
    "skew_ns": pl.Int64(),
    "alone_ns": pl.Int64(),  # from the last but one arrival to the last
    "last_ns": pl.Int64(),  # the last arrival
    "last_rank": pl.Int32(),
}
_SUM_COLUMNS: Final[dict[str, pl.DataType]] = {
    "step": pl.Int32(),
    "wait_ns": pl.Int64(),
    "transfer_ns": pl.Int64(),
}
_RANK_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "wait_ns": pl.Int64(),
    "transfer_ns": pl.Int64(),
    "calls": pl.Int64(),
    "expected": pl.Float64(),
    "variance": pl.Float64(),
    "step": pl.List(pl.Int32()),
}
_NO_CALLS: Final = tuple(
    pl.DataFrame(schema=columns) for columns in (_CALL_COLUMNS, _SUM_COLUMNS, _RANK_COLUMNS)
)
STEP_COLUMNS: Final[dict[str, pl.DataType]] = {
    "step": pl.Int32(),
    "calls": pl.Int64(),
    "skew_ns": pl.Int64(),  # median
    "skew_max_ns": pl.Int64(),
    "wait_ns": pl.Int64(),  # of a rank, mean: in its calls until the last rank has arrived
    "transfer_ns": pl.Int64(),  # the rest of its calls
    "last_rank": pl.Int32(),  # of the call with the greatest skew, and when that was
    "first_ns": pl.Int64(),
    "over_ns": pl.Int64(),
}
LAST_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "calls": pl.Int64(),
    "last": pl.Int64(),  # calls to which it arrived last
    "expected": pl.Float64(),  # by chance
    "chance": pl.Float64(),  # and no more than so many by chance
    "alone_ns": pl.Int64(),  # for how long all waited for it alone, in all
    "wait_ns": pl.Int64(),
    "transfer_ns": pl.Int64(),
    "first_ns": pl.Int64(),  # of the call that waited for it longest
    "over_ns": pl.Int64(),
}


@dataclass(frozen=True, eq=False)
class Arrivals(DisplayMixin):
    """Arrivals by step, `last` ones by rank, and the `spread` of the skew by operation.

    `alone` says for how long others waited for each rank alone, by step (`jitter.py`).
    """

    by_step: pl.DataFrame
    last: pl.DataFrame
    spread: pl.DataFrame
    alone: pl.DataFrame
    findings: tuple[Finding, ...] = ()


def run(facts: Facts) -> Arrivals:
    """Measure the calls to which all their ranks arrived, on clocks that are tied together."""
    trace, rank_count = facts.trace, facts.trace.workers.height
    unclear_ns = CLOCK_UNCERTAINTIES_OF_SKEW * trace.uncertainty_ns
    blocks = (block for grid in trace.calls for block in _measure_calls(grid, unclear_ns))
    calls, by_step, by_rank = map(pl.concat, zip(_NO_CALLS, *blocks, strict=True))
    # The clocks cannot separate what is closer: such ranks count as having arrived together.
    clear_calls = calls.with_columns(
        pl.when(pl.col(name) > unclear_ns).then(name).otherwise(0)
        for name in ("skew_ns", "alone_ns")
    )
    messages = facts.awaited_messages
    arrivals = pl.concat([clear_calls.select(messages.columns), messages])
    caused_waits = measure_caused_waits(arrivals, facts.phases)
    kept_columns = ("step", "first_ns", "over_ns", "last_rank")
    return Arrivals(
        by_step=_summarise_steps(by_step, clear_calls, rank_count),
        last=_count_last(by_rank, clear_calls, sum_waits_by_rank(caused_waits)),
        spread=log_histogram([calls], "skew_ns", "op", kept_columns),
        alone=_sum_alone(arrivals, caused_waits, rank_count),
    )


def _sum_alone(
    last_arrivals: pl.DataFrame, caused_waits: pl.DataFrame, rank_count: int
) -> pl.DataFrame:
    """Sum the waits that last arrivals caused, for each rank alone, by step, in `ALONE_COLUMNS`.

    `last_arrivals` has a row per call or message, `caused_waits` one per wait for one rank.
    """
    fair_share = 1 / max(rank_count, 1)
    squared_ns = pl.col("alone_ns").cast(pl.Float64) ** 2
    by_chance = last_arrivals.group_by("step", rank="last_rank").agg(
        variance=(squared_ns * fair_share * (1 - fair_share)).sum()
    )
    by_step = caused_waits.group_by("rank", "step").agg(pl.col("alone_ns").sum())
    waits = by_chance.join(by_step, on=("rank", "step"), how="left").sort("rank", "step")
    return waits.select(
        pl.col(name).cast(kind).fill_null(0.0) for name, kind in ALONE_COLUMNS.items()
    )


def _measure_calls(
    grid: CallGrid, unclear_ns: int
) -> Iterator[tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]]:
    """Yield complete calls, some at a time, a row each, and their sums by step and by rank.

    Time in a call is a wait until the last arrival, else transfer; waits of `unclear_ns` or less, which
    clocks cannot show, are transfer.
    """
    has_left_any = grid.is_made & (grid.end_ns != FOREVER)  # [call, process]
    is_complete = (grid.arrival_counts == grid.expected_rank_count) & (grid.expected_rank_count > 1)
    rows = np.flatnonzero(is_complete & (grid.last_arrival_ns != NEVER) & has_left_any.any(axis=1))
    for block_rows, block in grid.take_calls(rows).split_into_blocks():
        has_left = has_left_any[rows[block_rows]]
        wait_ns = block.wait_ns()
        wait_ns[(wait_ns <= unclear_ns) | ~has_left] = 0
        transfer_ns = np.where(has_left, block.end_ns - block.start_ns - wait_ns, 0)
        yield (
            _describe_calls(block, has_left),
            _sum_by_step(block.step, has_left, wait_ns, transfer_ns),
            _sum_by_rank(block, has_left, wait_ns, transfer_ns),
        )


def _describe_calls(grid: CallGrid, has_left: Flags) -> pl.DataFrame:
    """Return a row a call, in `_CALL_COLUMNS`, of the ranks that left it, [call, process]."""
    arrived_ns = np.where(has_left, grid.start_ns, NEVER)
    last_ns = arrived_ns.max(axis=1)
    first_ns = np.where(has_left, grid.start_ns, FOREVER).min(axis=1)
    one_rank_each = np.arange(grid.call_count), has_left.argmax(axis=1)
    columns = {
        "communicator": pl.Series([grid.communicator_uid]).new_from_index(0, grid.call_count),
        "seq": grid.seq,
        "op": pl.Series(COLLECTIVES).gather(grid.op[one_rank_each]),
        "step": grid.step[one_rank_each],
        "first_ns": first_ns,
        "over_ns": np.where(has_left, grid.end_ns, NEVER).max(axis=1),
        "skew_ns": last_ns - first_ns,
        "alone_ns": measure_last_gap_ns(arrived_ns),
        "last_ns": last_ns,
        "last_rank": grid.ranks[arrived_ns.argmax(axis=1)],
    }
    return pl.DataFrame(columns, schema=_CALL_COLUMNS)


def _summarise_steps(sums: pl.DataFrame, calls: pl.DataFrame, rank_count: int) -> pl.DataFrame:
    """Return skew and the mean rank's waits by step, in `STEP_COLUMNS`.

    `sums` has one row per call, or per call and rank where ranks are in different steps, with waits and
    transfers. `calls` has one row per call.
    """
    greatest_skew = pl.col("skew_ns").arg_max()
    skews = calls.group_by("step").agg(
        pl.col("last_rank", "first_ns", "over_ns").get(greatest_skew),
        calls=pl.len(),
        skew_max_ns=pl.col("skew_ns").max(),
        skew_ns=pl.col("skew_ns").median(),
    )
    means = sums.group_by("step").agg(pl.col("wait_ns", "transfer_ns").sum() / rank_count)
    by_step = skews.filter(pl.col("step") >= 0).join(means, on="step", how="left").sort("step")
    return by_step.select(pl.col(name).cast(kind) for name, kind in STEP_COLUMNS.items())


def _sum_by_step(
    step_numbers: Int32s, has_left: Flags, wait_ns: Ints, transfer_ns: Ints
) -> pl.DataFrame:
    """Sum up waits and transfers, [call, process], by the step that each rank was in."""
    if repeats_one_column(step_numbers):
        columns = (step_numbers[:, 0], wait_ns.sum(axis=1), transfer_ns.sum(axis=1))
    else:
        columns = (step_numbers[has_left], wait_ns[has_left], transfer_ns[has_left])
    return pl.DataFrame(dict(zip(_SUM_COLUMNS, columns, strict=True)), schema=_SUM_COLUMNS)


def _sum_by_rank(grid: CallGrid, has_left: Flags, wait_ns: Ints, transfer_ns: Ints) -> pl.DataFrame:
    """Sum waits, transfers and calls, [call, process], by rank, and how often it is last by chance.

    `has_left` is True where a process made a call and left it.
    """
    fair_share = 1 / grid.expected_rank_count
    if repeats_one_column(grid.step) and has_left.all():
        steps_of_ranks = [np.unique(grid.step[:, 0])] * len(grid.ranks)
    else:
        steps_of_ranks = [
            np.unique(steps[has_rank_left])
            for steps, has_rank_left in zip(grid.step.T, has_left.T, strict=True)
        ]
    columns = {
        "rank": grid.ranks,
        "wait_ns": wait_ns.sum(axis=0),
        "transfer_ns": transfer_ns.sum(axis=0),
        "calls": has_left.sum(axis=0),
        "expected": fair_share @ has_left,
        "variance": (fair_share * (1 - fair_share)) @ has_left,
        "step": pl.Series(steps_of_ranks, dtype=_RANK_COLUMNS["step"]),
    }
    return pl.DataFrame(columns, schema=_RANK_COLUMNS)


def _count_last(
    sums_by_rank: pl.DataFrame, calls: pl.DataFrame, caused_waits: pl.DataFrame
) -> pl.DataFrame:
    """Count how often ranks arrived last, and by chance would have, in `LAST_COLUMNS`.

    `sums_by_rank` has rows in `_RANK_COLUMNS`, `calls` one per call, `caused_waits` one per rank.
    """
    by_rank = (
        sums_by_rank.filter(pl.col("calls") > 0)
        .group_by("rank")
        .agg(pl.exclude("step").sum(), steps=pl.col("step").explode().n_unique())
    )
    longest_wait = pl.col("alone_ns").arg_max()
    last_calls = calls.group_by(rank="last_rank").agg(
        pl.col("first_ns", "over_ns").get(longest_wait), last=pl.len()
    )
    z_score = NormalDist().inv_cdf(1 - MAX_P_VALUE_IF_LAST_BY_CHANCE / max(by_rank.height, 1))
    margin = (pl.col("variance") * pl.col("calls") / pl.col("steps")).sqrt() * z_score
    last_counts = (
        by_rank.join(caused_waits, on="rank", how="full", coalesce=True)
        .join(last_calls, on="rank", how="left")
        .with_columns(pl.exclude("rank", "first_ns", "over_ns").fill_null(0))
        .with_columns(chance=pl.min_horizontal(pl.col("expected") + margin, "calls"))
        .sort("rank")
    )
    return last_counts.select(pl.col(name).cast(kind) for name, kind in LAST_COLUMNS.items())
