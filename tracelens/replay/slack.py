"""How much later each rank could be without making the job longer: backwards from call to call.

A collective may end later by the least that any of its ranks can spare afterwards, or, in flight, by
what the next one of the step could begin later. A rank may come later to it by that, and by what it
waits there for the last one; to one in flight also by no more than to those that follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.schema.vocabulary import FULL_COLLECTIVES

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.model.trace import Trace

__all__ = ["SLACK_COLUMNS", "measure_slack"]

SLACK_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "slack_ns": pl.Int64(),  # median over steps
    "least_slack_ns": pl.Int64(),
    "critical_steps": pl.Float64(),  # share of steps in which it can spare less than 1 % of a step
}
CRITICAL: Final = 0.01


def measure_slack(trace: Trace) -> pl.DataFrame:
    """Return each rank's slack; empty without steps or collectives in them."""
    steps = trace.steps["step"].unique().sort()
    calls = trace.arrivals.filter(
        pl.col("last_arrival_ns").is_not_null(),
        pl.col("end_ns").is_not_null(),
        pl.col("op").is_in(FULL_COLLECTIVES),
        pl.col("step").is_in(steps.implode()),
    )
    if calls.is_empty():
        return pl.DataFrame(schema=SLACK_COLUMNS)
    slack = _backwards(trace, calls, steps)
    known = np.where(np.isfinite(slack), slack, np.nan)
    length = (trace.steps["end_ns"] - trace.steps["start_ns"]).median()
    near = CRITICAL * (length if isinstance(length, float) else 0.0)
    ranks = trace.workers["rank"]
    met = ~np.isnan(known).all(axis=0)
    known = known[:, met]
    rows = {
        "rank": ranks.to_numpy()[met],
        "slack_ns": np.nanmedian(known, axis=0).astype(np.int64),
        "least_slack_ns": np.nanmin(known, axis=0).astype(np.int64),
        "critical_steps": np.nanmean(np.where(np.isnan(known), np.nan, known <= near), axis=0),
    }
    return pl.DataFrame(rows, schema=SLACK_COLUMNS).sort("rank")


def _backwards(trace: Trace, calls: pl.DataFrame, steps: pl.Series) -> Floats:
    """Return how much later each rank may begin to meet others in a step; inf where it meets nobody."""
    ranks = trace.workers["rank"]
    ends = trace.steps.group_by("rank").agg(pl.col("end_ns").max())
    last = dict(ends.iter_rows())
    whole = max(last.values())
    spare = np.array([whole - last.get(rank, whole) for rank in ranks.to_list()], np.int64)
    calls_by_rank = ranks.search_sorted(calls["rank"]).to_numpy()
    wait, row = calls["wait_ns"].to_numpy(), steps.search_sorted(calls["step"]).to_numpy()
    slack = np.full((len(steps), len(ranks)), np.inf)
    each = _calls(trace, calls)
    arrive, over = calls["last_arrival_ns"].to_numpy()[each.begins], calls["end_ns"].to_numpy()
    following = _Following()
    for call in np.argsort(arrive, kind="stable")[::-1].tolist():
        part = slice(each.begins[call], each.bounds[call])
        members, step = calls_by_rank[part], int(row[each.begins[call]])
        if each.flying[call]:
            if following.step != step:
                following = _Following(step, int(spare[members].min()))
            else:
                gap = following.arrive - int(over[part].max())
                following = _Following(step, following.spare + max(gap, 0))
            following.arrive = int(arrive[call])
            most = _before(spare, members, slack[step])
            spare[members] = np.minimum(wait[part] + following.spare, most)
        else:
            spare[members] = wait[part] + spare[members].min()
        slack[step, members] = spare[members]
    return slack


@dataclass(frozen=True)
class _Calls:
    """Where the rows of each collective begin and end, and whether it is in flight."""

    begins: Ints
    bounds: Ints
    flying: Flags


@dataclass
class _Following:
    """The call in flight that follows in the same step: by how much it may end later, and its begin."""

    step: int = -1
    spare: int = 0
    arrive: int = 0


def _before(spare: Ints, members: Ints, known: Floats) -> Ints:
    """Return what each rank may be later at most for the calls that follow in the step."""
    met = np.isfinite(known[members])
    return np.where(met, spare[members], np.iinfo(np.int64).max)


def _calls(trace: Trace, calls: pl.DataFrame) -> _Calls:
    """Split the calls, whose ranks are neighbours (`tracelens.align.collectives`)."""
    number = calls["seq"].to_numpy().astype(np.int64)
    world = calls["communicator"].to_physical().to_numpy()
    changes = (np.diff(number) != 0) | (np.diff(world) != 0)
    begins = np.concatenate([[0], np.flatnonzero(changes) + 1])
    heads = calls[begins].join(
        trace.workers.select("process", "training_thread"),
        on="process",
        how="left",
        maintain_order="left",
    )
    flying = heads.select(pl.col("thread").ne_missing(pl.col("training_thread"))).to_series()
    return _Calls(begins, np.append(begins[1:], calls.height), flying.to_numpy())
