"""Arrivals: the skew with which ranks enter collectives, last arrivals, and the wait they cause.

Skew of a call = last arrival - first. Chance alone makes each of n ranks the last once in n calls, and
as the calls of a step follow each other, whoever is delayed is last in all of them: a rank is last more
often than chance explains only beyond what n ranks, drawn anew in every step, reach once in twenty
runs. What is shorter than three times the clocks' uncertainty is none: no clock can show that a rank
waited.

Of the wait that a rank caused alone, moments count once, however many calls wait in them: who is delayed
is so for all calls that follow, as long as nothing brings the ranks together. And who is delayed because
it was blocked itself, in a call of other ranks, did not cause that: there, another rank was waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.accounting.pieces import spent_before
from tracelens.stats import robust

if TYPE_CHECKING:
    from tracelens.accounting.phases import Phases
    from tracelens.model.findings import Finding
    from tracelens.model.trace import Trace

__all__ = ["LAST_COLUMNS", "STEP_COLUMNS", "Arrivals", "run", "wait_caused_alone"]


BY_CHANCE: Final = 0.05  # of runs, in which any rank goes beyond
SIGMAS: Final = 3  # of the clocks' uncertainty: what is less cannot be seen
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
_CALL: Final = ("communicator", "seq")
_WHERE: Final = ("step", "first_ns", "over_ns", "last_rank")


@dataclass(frozen=True)
class Arrivals:
    """`by_step` and `last` (a row a rank), and the `spread` of the skew by operation."""

    by_step: pl.DataFrame
    last: pl.DataFrame
    spread: pl.DataFrame
    findings: tuple[Finding, ...] = ()


def run(trace: Trace, phases: Phases) -> Arrivals:
    """Look at the calls to which all their ranks arrived, on clocks that are tied together."""
    known = pl.col("last_arrival_ns").is_not_null() & pl.col("end_ns").is_not_null()
    whole = (pl.col("arrived") == pl.col("expected")) & (pl.col("expected") > 1)
    uncertain = SIGMAS * trace.uncertainty_ns
    rows = trace.arrivals.filter(known & whole)
    calls = _calls(rows)
    seen, seen_calls = _seen_waits(rows, uncertain), _seen_gaps(calls, uncertain)
    return Arrivals(
        by_step=_by_step(seen, seen_calls, trace.workers.height),
        last=_last(seen, seen_calls, wait_caused_alone(seen_calls, phases)),
        spread=robust.log_histogram(calls, "skew_ns", "op", _WHERE),
    )


def _seen_waits(rows: pl.DataFrame, uncertain_ns: int) -> pl.DataFrame:
    """Count waits that the clocks cannot tell as transfer."""
    wait = pl.when(pl.col("wait_ns") > uncertain_ns).then("wait_ns").otherwise(0)
    whole = pl.col("wait_ns") + pl.col("transfer_ns")
    return rows.with_columns(wait_ns=wait, transfer_ns=whole - wait)


def _seen_gaps(calls: pl.DataFrame, uncertain_ns: int) -> pl.DataFrame:
    """Treat ranks that the clocks cannot separate as having arrived at once."""
    gaps = ("skew_ns", "alone_ns")
    return calls.with_columns(
        pl.when(pl.col(name) > uncertain_ns).then(name).otherwise(0) for name in gaps
    )


def _calls(rows: pl.DataFrame) -> pl.DataFrame:
    arrived = pl.col("start_ns")
    table = rows.group_by(_CALL, maintain_order=True).agg(
        pl.col("op", "step").first(),
        first_ns=arrived.min(),
        over_ns=pl.col("end_ns").max(),
        skew_ns=arrived.max() - arrived.min(),
        alone_ns=arrived.max() - arrived.top_k(2).min(),
        last_ns=arrived.max(),
        last_rank=pl.col("rank").get(arrived.arg_max()),
    )
    return table.select(pl.col(name).cast(kind) for name, kind in _CALL_COLUMNS.items())


def _by_step(rows: pl.DataFrame, calls: pl.DataFrame, ranks: int) -> pl.DataFrame:
    inside = pl.col("step") >= 0
    longest = pl.col("skew_ns").arg_max()
    spent = rows.filter(inside).group_by("step").agg(pl.col("wait_ns", "transfer_ns").sum() / ranks)
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
    joined = table.join(spent, on="step", how="left").sort("step")
    return joined.select(pl.col(name).cast(kind) for name, kind in STEP_COLUMNS.items())


def _last(rows: pl.DataFrame, calls: pl.DataFrame, caused: pl.DataFrame) -> pl.DataFrame:
    """Count who arrived last, beside what chance explains, and the wait that it caused."""
    longest = pl.col("alone_ns").arg_max()
    delayed = calls.group_by(rank="last_rank").agg(
        pl.col("first_ns", "over_ns").get(longest),
        last=pl.len(),
    )
    share = 1 / pl.col("expected")
    took = rows.group_by("rank").agg(
        pl.col("wait_ns", "transfer_ns").sum(),
        calls=pl.len(),
        fair=share.sum(),
        variance=(share * (1 - share)).sum(),
        steps=pl.col("step").n_unique(),
    )
    deviations = NormalDist().inv_cdf(1 - BY_CHANCE / max(took.height, 1))
    wide = (pl.col("variance") * pl.col("calls") / pl.col("steps")).sqrt() * deviations
    table = (
        took.join(delayed, on="rank", how="left")
        .join(caused, on="rank", how="left")
        .with_columns(pl.col("last", "alone_ns").fill_null(0), expected="fair")
        .with_columns(chance=pl.min_horizontal(pl.col("fair") + wide, "calls"))
        .sort("rank")
    )
    return table.select(pl.col(name).cast(kind) for name, kind in LAST_COLUMNS.items())


def wait_caused_alone(calls: pl.DataFrame, phases: Phases) -> pl.DataFrame:
    """Sum up by `rank` how long it was waited for alone (`alone_ns`).

    Args:
        calls: A row a call: `last_rank`, when it arrived (`last_ns`), and after how long (`alone_ns`).
        phases: Where ranks themselves waited.
    """
    moments = _once(calls)
    steps = phases.times["step"].unique().to_numpy()
    waits = phases.pieces.of("wait", steps).partition_by("rank", as_dict=True)
    rows = []
    for (rank,), mine in moments.partition_by("rank", as_dict=True, maintain_order=True).items():
        whole = int((mine["end_ns"] - mine["start_ns"]).sum())
        own = waits.get((rank,))
        if own is not None:
            begin, end = (
                spent_before(own, mine[name].to_numpy()) for name in ("start_ns", "end_ns")
            )
            whole -= round(float((end - begin).sum()))
        rows.append({"rank": rank, "alone_ns": whole})
    return pl.DataFrame(rows, schema={"rank": pl.Int32, "alone_ns": pl.Int64})


def _once(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the times in which a rank was waited for alone, apart from each other."""
    reached = pl.col("end_ns").cum_max().shift(1).over("rank")
    return (
        calls.filter(pl.col("alone_ns") > 0)
        .select(rank="last_rank", start_ns=pl.col("last_ns") - pl.col("alone_ns"), end_ns="last_ns")
        .sort("rank", "start_ns")
        .with_columns(start_ns=pl.max_horizontal("start_ns", reached))
        .filter(pl.col("start_ns") < pl.col("end_ns"))
    )
