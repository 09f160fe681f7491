"""Arrivals: the skew with which ranks enter collectives, last arrivals, and the wait they cause.

Skew of a call = last arrival - first. Chance alone makes each of n ranks the last once in n calls, and
as the calls of a step follow each other, whoever is delayed is last in all of them: a rank is last more
often than chance explains only beyond what n ranks, drawn anew in every step, reach in 0.3 % of
runs. What is shorter than three times the clocks' uncertainty is none: no clock can show that a rank
waited.
The wait that a rank caused alone is measured in `accounting/communication/awaited_ranks.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.communication.awaited_ranks import (
    measure_caused_waits,
    sum_by_rank,
)
from tracelens.accounting.jitter import ALONE_COLUMNS
from tracelens.model.calls import NEVER, alone_ns, is_uniform
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

__all__ = ["LAST_COLUMNS", "STEP_COLUMNS", "Arrivals", "run"]

# times the uncertainty of clocks: what is shorter is no skew [chosen]
CLOCK_UNCERTAINTIES_OF_SKEW: Final = 3
# probability: chance makes some rank last more often than the bound as rarely [chosen]
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
_SPENT_COLUMNS: Final[dict[str, pl.DataType]] = {
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
_NOTHING: Final = tuple(
    pl.DataFrame(schema=columns) for columns in (_CALL_COLUMNS, _SPENT_COLUMNS, _RANK_COLUMNS)
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
    "alone_ns": pl.Int64(),  # for how long all waited for it alone, in all (`_blame`)
    "wait_ns": pl.Int64(),
    "transfer_ns": pl.Int64(),
    "first_ns": pl.Int64(),  # of the call that waited for it longest
    "over_ns": pl.Int64(),
}
_WHERE: Final = ("step", "first_ns", "over_ns", "last_rank")


@dataclass(frozen=True, eq=False)
class Arrivals(DisplayMixin):
    """`by_step` and `last` (a row a rank), and the `spread` of the skew by operation.

    `alone` says for how long others waited for each rank alone, by step (`jitter.py`).
    """

    by_step: pl.DataFrame
    last: pl.DataFrame
    spread: pl.DataFrame
    alone: pl.DataFrame
    findings: tuple[Finding, ...] = ()


def run(facts: Facts) -> Arrivals:
    """Look at the calls to which all their ranks arrived, on clocks that are tied together."""
    trace, phases = facts.trace, facts.phases
    uncertain = CLOCK_UNCERTAINTIES_OF_SKEW * trace.uncertainty_ns
    blocks = (block for grid in trace.calls for block in _measure(grid, uncertain))
    calls, spent, ranks = map(pl.concat, zip(_NOTHING, *blocks, strict=True))
    seen_calls, messages = _seen_gaps(calls, uncertain), facts.awaited_messages
    alone = pl.concat([seen_calls.select(messages.columns), messages])
    caused = measure_caused_waits(alone, phases)
    return Arrivals(
        by_step=_by_step(spent, seen_calls, trace.workers.height),
        last=_last(ranks, seen_calls, sum_by_rank(caused)),
        spread=log_histogram([calls], "skew_ns", "op", _WHERE),
        alone=_by_step_and_rank(alone, caused, trace.workers.height),
    )


def _by_step_and_rank(calls: pl.DataFrame, caused: pl.DataFrame, ranks: int) -> pl.DataFrame:
    """Return `ALONE_COLUMNS`: what others waited for each rank alone in each step.

    `caused` is what `measure_caused_waits` returns of the calls.
    """
    fair = 1 / max(ranks, 1)
    square = pl.col("alone_ns").cast(pl.Float64) ** 2
    by_chance = calls.group_by("step", rank="last_rank").agg(
        variance=(square * fair * (1 - fair)).sum()
    )
    by_step = caused.group_by("rank", "step").agg(pl.col("alone_ns").sum())
    table = by_chance.join(by_step, on=("rank", "step"), how="left").sort("rank", "step")
    return table.select(
        pl.col(name).cast(kind).fill_null(0.0) for name, kind in ALONE_COLUMNS.items()
    )


def _measure(
    whole: CallGrid, uncertain_ns: int
) -> Iterator[tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]]:
    """Yield some calls at a time to which all came, with waits and transfers by step and by rank.

    What clocks cannot tell as wait counts as transfer.
    """
    left = whole.there & (whole.end_ns != FOREVER)
    complete = (whole.arrived == whole.expected) & (whole.expected > 1)
    chosen = np.flatnonzero(complete & (whole.last_ns != NEVER) & left.any(axis=1))
    for calls, some in whole.taken(chosen).blocks():
        was_left = left[chosen[calls]]
        wait_ns = some.wait_ns()
        wait_ns[(wait_ns <= uncertain_ns) | ~was_left] = 0
        transfer_ns = np.where(was_left, some.end_ns - some.start_ns - wait_ns, 0)
        yield (
            _calls_of(some, was_left),
            _sums_by_step(some.step, was_left, wait_ns, transfer_ns),
            _sums_by_rank(some, was_left, wait_ns, transfer_ns),
        )


def _seen_gaps(calls: pl.DataFrame, uncertain_ns: int) -> pl.DataFrame:
    """Treat ranks that the clocks cannot separate as having arrived at once."""
    gaps = ("skew_ns", "alone_ns")
    return calls.with_columns(
        pl.when(pl.col(name) > uncertain_ns).then(name).otherwise(0) for name in gaps
    )


def _calls_of(grid: CallGrid, left: Flags) -> pl.DataFrame:
    arrived_ns = np.where(left, grid.start_ns, NEVER)
    last, head = arrived_ns.max(axis=1), left.argmax(axis=1)
    first = np.where(left, grid.start_ns, FOREVER).min(axis=1)
    rows = np.arange(grid.height)
    columns = {
        "communicator": pl.Series([grid.uid]).new_from_index(0, grid.height),
        "seq": grid.seq,
        "op": pl.Series(COLLECTIVES).gather(grid.op[rows, head]),
        "step": grid.step[rows, head],
        "first_ns": first,
        "over_ns": np.where(left, grid.end_ns, NEVER).max(axis=1),
        "skew_ns": last - first,
        "alone_ns": alone_ns(arrived_ns),
        "last_ns": last,
        "last_rank": grid.ranks[arrived_ns.argmax(axis=1)],
    }
    return pl.DataFrame(columns, schema=_CALL_COLUMNS)


def _by_step(spent: pl.DataFrame, calls: pl.DataFrame, ranks: int) -> pl.DataFrame:
    inside = pl.col("step") >= 0
    longest = pl.col("skew_ns").arg_max()
    table = (
        calls.filter(inside)
        .group_by("step")
        .agg(
            pl.col("last_rank", "first_ns", "over_ns").get(longest),
            calls=pl.len(),
            skew_max_ns=pl.col("skew_ns").max(),
            skew_ns=pl.col("skew_ns").median(),
        )
    )
    means = spent.group_by("step").agg(pl.col("wait_ns", "transfer_ns").sum() / ranks)
    joined = table.join(means, on="step", how="left").sort("step")
    return joined.select(pl.col(name).cast(kind) for name, kind in STEP_COLUMNS.items())


def _sums_by_step(step: Int32s, left: Flags, wait: Ints, transfer: Ints) -> pl.DataFrame:
    """Sum up waits and transfers by the step that each rank was in."""
    if is_uniform(step):
        columns = (step[:, 0], wait.sum(axis=1), transfer.sum(axis=1))
    else:
        columns = (step[left], wait[left], transfer[left])
    return pl.DataFrame(dict(zip(_SPENT_COLUMNS, columns, strict=True)), schema=_SPENT_COLUMNS)


def _sums_by_rank(grid: CallGrid, left: Flags, wait_ns: Ints, transfer_ns: Ints) -> pl.DataFrame:
    """Sum up waits, transfers and calls of each rank, and how often it is last by chance."""
    fair = 1 / grid.expected
    columns = {
        "rank": grid.ranks,
        "wait_ns": wait_ns.sum(axis=0),
        "transfer_ns": transfer_ns.sum(axis=0),
        "calls": left.sum(axis=0),
        "expected": fair @ left,
        "variance": (fair * (1 - fair)) @ left,
        "step": pl.Series(_steps_of(grid, left), dtype=_RANK_COLUMNS["step"]),
    }
    return pl.DataFrame(columns, schema=_RANK_COLUMNS)


def _steps_of(grid: CallGrid, left: Flags) -> list[Ints]:
    """Return the steps in which each rank made calls."""
    if is_uniform(grid.step) and left.all():
        return [np.unique(grid.step[:, 0])] * len(grid.ranks)
    return [np.unique(step[was_left]) for step, was_left in zip(grid.step.T, left.T, strict=True)]


def _last(ranks: pl.DataFrame, calls: pl.DataFrame, caused: pl.DataFrame) -> pl.DataFrame:
    """Count who arrived last, beside what chance explains, and the wait that it caused."""
    took = (
        ranks.filter(pl.col("calls") > 0)
        .group_by("rank")
        .agg(pl.exclude("step").sum(), steps=pl.col("step").explode().n_unique())
    )
    longest = pl.col("alone_ns").arg_max()
    delayed = calls.group_by(rank="last_rank").agg(
        pl.col("first_ns", "over_ns").get(longest),
        last=pl.len(),
    )
    p_value_of_rank = MAX_P_VALUE_IF_LAST_BY_CHANCE / max(took.height, 1)
    deviations = NormalDist().inv_cdf(1 - p_value_of_rank)
    wide = (pl.col("variance") * pl.col("calls") / pl.col("steps")).sqrt() * deviations
    table = (
        took.join(caused, on="rank", how="full", coalesce=True)
        .join(delayed, on="rank", how="left")
        .with_columns(pl.exclude("rank", "first_ns", "over_ns").fill_null(0))
        .with_columns(chance=pl.min_horizontal(pl.col("expected") + wide, "calls"))
        .sort("rank")
    )
    return table.select(pl.col(name).cast(kind) for name, kind in LAST_COLUMNS.items())
