"""For how long all others waited for one rank alone, its own waiting and further calls counted once.

Who is late is so for all calls that follow, as long as nothing brings the ranks together: moments count
once, however many calls wait in them. And who is late because it had to wait itself, in a call of other
ranks, is not to blame for that: there, another rank was waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelens.analyses._segments import spent_before

if TYPE_CHECKING:
    from tracelens.analyses.phases import Phases

__all__ = ["alone"]


def alone(calls: pl.DataFrame, phases: Phases) -> pl.DataFrame:
    """Sum up by `rank` how long it was waited for alone (`alone_ns`).

    Args:
        calls: A row a call: `last_rank`, when it came (`last_ns`), and after how long (`alone_ns`).
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
